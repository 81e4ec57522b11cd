"""Several machines, on torchelastic: its rendezvous says who takes part, its agent starts and watches each machine's workers.

``run.run_on_nodes`` puts it together: ``patience`` (waiting, told to the user), ``terms`` (what all nodes must have alike),
``meeting`` (the launchers' store, and torchelastic's rendezvous over it), ``clock`` (machines whose clocks differ), ``round``
(what the launchers tell each other from one meeting to the next), ``verdict`` (what follows from the end of a round),
``workers`` (this machine's, from the fork server), ``pulse`` (whether the store still answers), ``agent`` (torchelastic's, with
these workers).

This package imports torch, and is imported only where there are several machines.
"""
