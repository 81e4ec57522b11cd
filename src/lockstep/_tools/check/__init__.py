"""Checks a script's training loop without running it: finds values that one place of the loop
writes and another reads, where the two places run on different processes or in different launches.
Source in, findings out.

A list of forbidden names would not do. ``correct += 1`` inside ``batch.shards`` is right if nothing
outside reads it, right if it goes through ``batch.add``, and wrong if it decides a ``break``. So
the script is *run in the abstract*: statement by statement, in order, through functions, closures,
generators, classes and imported modules, but with sets of possibilities instead of values. Nothing
of the script is imported or executed.

::

    for batch in loader:               loops (1,)      inside = 0
        for x, y in batch.shards:      loops (1, 2)    inside = 2
            n += len(x)                write n: Site(line, "add", inside=True)     --+
        if n > 100:                    read n outside: the site was written inside  <-+ --> LS102
            best = n                   write best: Site(line, "set", inside=False) --+
    (next iteration: age)              the write becomes stale                       |
        if best > ...:                 read a stale write from outside              <-+ --> LS201

- A **Value** (``values``) is what an expression may be: objects of the script, flags (made of
  samples, of random numbers, of the rank, of the clock, ...), and the *sites* on which it depends.
- A **Site** is a place that changed something, and how (``set``, ``add``, ``append``, ``draw``,
  ...). A **Write** is a site with the loops around it. It is *stale* once one of these loops has
  begun
  another iteration: what is read then is from an earlier shard or step.
- The **State** (``state``) maps locations (a variable of a frame, an attribute, the content of an
  object) to cells of values and writes. Branches copy it, and join it again: what may be true on
  one way counts. Loops over shards, steps and epochs run twice, so that the second iteration sees
  what the first has left; any other loop runs once.
- A **sink** (``Machine.sink``) is a use that matters: weights, a decision, a saved or printed
  value. It turns each site on which the used value depends into a finding (``report.code_of``).
  Uses that gather from all ranks (``batch.add``, ``team.all_reduce``) drop the sites, so nothing is
  found.

The interpreter is one object, cut into files by inheritance, each knowing one thing more::

    Reading (what the parts ask of each other)
      Machine (state, writes, sinks) > Expressions > Loops > Functions > Teams (lockstep's calls)
        > Libraries (PyTorch, NumPy, Python) > Methods > Bindings > Statements > Reader (files)

It errs on the side of silence: an unknown value has no sites. Findings that ``verify`` does not
confirm would teach users to ignore it.
"""
