"""Launches on several machines: nodes meet at a rendezvous, and an agent on each starts and watches
its workers.

- ``run``: the entry, ``run_on_nodes``
- ``connection``: to the launchers' store, which one of them keeps; ``signed``: only values written
  by launchers count there
- ``static_rendezvous``: for numbered nodes; ``dynamic_rendezvous``: for nodes that come and go, by
  torchelastic; ``places``: what all nodes learn there
- ``state``: torchelastic's state on its way to the store
- ``waiter``: waiting with messages and a timeout; ``heartbeat``: periodic requests to the store
- ``round``: communication from one rendezvous to the next; ``verdict``: the decision at the end of
  a round
- ``agent``: all rounds of a node, with its ``workers``

This package imports torch, and is imported only if there are several machines.
"""
