"""Starting the processes of a run on this machine, watching them, and ending all of them.

``function.launch`` is for scripts and notebooks, ``script.run_script`` for the command line; both put the same pieces
together: ``spec`` (what a worker is), ``server`` and ``serve`` (the two ends of the fork server), ``worker`` (what runs
in a worker), ``supervise`` (start, watch, end), ``output``, ``failures``, ``processes``.

Nothing here imports torch in the process that launches.
"""
