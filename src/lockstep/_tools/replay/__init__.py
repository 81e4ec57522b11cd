"""The digest journal of a run, the first step in which two runs differ, and the replay of steps.

::

    run      -> digests/rank-R.jsonl   (journal: a few numbers per step, all of the time)
    diff     reads two journals, compares them in causal order (verify.trace.differences)
    replay   reads a journal and a checkpoint -> runs the script again up to the step
             -> trace/ and digests/ of its own -> verdict: bit-identical to the run, or not
"""
