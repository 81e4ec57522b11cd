"""Launches on several machines: nodes meet at a rendezvous, and an agent on each starts and watches
its workers.

A node is one launcher on one machine. One node keeps a store (PyTorch's key-value server), and
launchers exchange everything through it; they have no other connection::

    node 0                          node 1                      node 2
    launcher, keeps the store <---- launcher                    launcher ----> the store
      agent (a thread)                agent                       agent
      heartbeat (a thread)            heartbeat                   heartbeat
      fork server -> workers          fork server -> workers      fork server -> workers

    connect -> meet -> round 0: workers run -> all report -> judge -> exit
                ^                                              |
                +-------- restart, or a node came or left -----+

**Why a store**: any launcher may be lost at any moment, and entries in a store outlive the node
that wrote them. Only its keeper cannot be lost: then all others exit, since no node could know
which of the others still run.

**Why every node judges**: the verdict is a pure function of reports that all nodes read in the
store. So all come to the same verdict without another message, and no leader can be lost while it
informs the others.

**Why two threads, with a client each**: a request over a link that was cut never returns, and
blocks every thread that uses the same client. The heartbeat's requests show that the store does not
answer, while the agent is free to end the workers.

**Why entries are signed**: the store accepts requests from anyone who reaches its port, and some
entries decide which host the workers connect to.

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
