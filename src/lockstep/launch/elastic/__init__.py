"""Several machines, on torchelastic: its rendezvous says who takes part, its agent starts and watches each machine's workers.

- ``run``: puts it together, in ``run_on_nodes``
- ``connection``: to the launchers' store, which one of them keeps; ``signed``: where nothing counts but what launchers wrote
- ``compatibility``: what all nodes must have alike
- ``rendezvous``: of the nodes; ``static_rendezvous``: with numbers; ``dynamic_rendezvous``: that come and go
- ``state``: torchelastic's, in the store
- ``waiter``: waiting, told to the user; ``heartbeat``: what is said and asked all the time
- ``round``: what the launchers tell each other from one rendezvous to the next; ``verdict``: what follows from its end
- ``agent``: torchelastic's, with the ``workers`` of this machine, from the fork server
- ``claim``: who has a node's number

This package imports torch, and is imported only where there are several machines.
"""
