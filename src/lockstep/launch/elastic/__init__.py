"""Several machines: a rendezvous says who takes part, an agent on each starts and watches its workers.

- ``run``: puts it together, in ``run_on_nodes``
- ``connection``: to the launchers' store, which one of them keeps; ``signed``: where nothing counts but what launchers wrote
- ``compatibility``: what all nodes must have alike
- ``static_rendezvous``: of nodes with numbers; ``dynamic_rendezvous``: of nodes that come and go, which is torchelastic's
- ``state``: torchelastic's, in the store
- ``waiter``: waiting, told to the user; ``heartbeat``: what is said and asked all the time
- ``round``: what the launchers tell each other from one rendezvous to the next; ``verdict``: what follows from its end
- ``agent``: from the first rendezvous to the last end, with the ``workers`` of this machine, from the fork server

This package imports torch, and is imported only where there are several machines.
"""
