"""torchelastic's rendezvous, as lockstep's agent asks for it."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous import RendezvousHandler

from lockstep.launch.elastic.connection import Connection


class NodeRendezvous(RendezvousHandler):
    """One of torchelastic's rendezvous handlers, in words for the user."""

    _inner: RendezvousHandler

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self) -> int:
        """How many nodes wait to take part: asks the store, which ``num_nodes_waiting`` does not."""
        return self._inner.num_nodes_waiting()

    def is_over(self) -> None:
        """What has followed from the last rendezvous is at its end: whoever comes from now on comes to the next."""

    def close(self) -> None:
        """This launcher ends."""

    def get_backend(self) -> str:
        """torchelastic's name for it."""
        return self._inner.get_backend()

    def is_closed(self) -> bool:
        """Whether the run has ended."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Have no node come any more."""
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        """For torchelastic's agent, which would ask the store in the thread that must not wait: see ``Round``."""
        return 0

    def get_run_id(self) -> str:
        """As the user calls it."""
        return self._connection.nodes.run_id

    def shutdown(self) -> bool:
        """The run has ended."""
        return self._inner.shutdown()
