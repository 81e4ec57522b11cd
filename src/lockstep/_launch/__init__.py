"""Starts the processes of a run on this machine, watches them, and ends all of them.

- entries: ``function.launch`` for scripts and notebooks, ``script.run_script`` for the command
  line; ``local``: a launch on this machine
- before the launch: ``options``, ``nodes``, ``source``, ``joins``, ``program``, ``surroundings``,
  ``gpus``, ``binding``
- the fork server: ``server`` (the launcher's side), ``serve`` (the server's process), ``guard``
- a worker: ``spec``, ``worker``
- while workers run: ``supervise``, ``forked``, ``fresh_process``, ``stages``, ``signals``,
  ``messages``, ``output``, ``lingering``
- failures: ``failures``, ``echoes``, ``dead_loader``, ``failure_reports``, ``restarts``; with the
  tools installed, ``observer`` and ``explained``
- the end: ``processes``, ``private`` (the directory), ``ending`` (its mark)
- several machines: ``endpoint``, ``secret``, ``elastic``

Only ``elastic`` imports torch in the process that launches.
"""
