"""A rendezvous of nodes, as torchelastic's agent and lockstep's ask for it."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler

from lockstep.launch.elastic.connection import Connection


class NodeRendezvous(RendezvousHandler):
    """A rendezvous handler with messages for the user. In this one, no node comes or goes once all have joined."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self) -> int:
        """How many nodes wait to take part: asks the store, which ``num_nodes_waiting`` does not."""
        return 0

    def is_over(self) -> None:
        """What has followed from the last rendezvous is at its end: whoever comes from now on comes to the next."""

    def get_backend(self) -> str:
        """torchelastic's name for it."""
        return "static"

    def is_closed(self) -> bool:
        """Whether the run has ended."""
        return False

    def set_closed(self) -> None:
        """Have no node come any more."""

    def num_nodes_waiting(self) -> int:
        """For torchelastic's agent, which would ask the store in the thread that must not wait: see ``Round``."""
        return 0

    def get_run_id(self) -> str:
        """As the user calls it."""
        return self._connection.nodes.run_id

    def shutdown(self) -> bool:
        """The run has ended."""
        return True
