"""The workers of one start: forked by the server, what they have sent, and the signals that they
are sent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from typing import Any

from lockstep._base.errors import LaunchError
from lockstep._launch.messages import Receiver, WorkerMessages
from lockstep._launch.output import Streams
from lockstep._launch.processes import kill_worker
from lockstep._launch.server import ForkServer
from lockstep._launch.spec import LaunchSpec

_MOST_ASKED = 4
"""Maximum number of workers that were requested and are not yet forked."""


class ForkedWorkers:
    """The workers of this machine, forked by the server. They must be closed.

    Args:
        server: forks them.
        spec: what they run.
        listen: called with each rank that is requested, and its messages.
    """

    def __init__(
        self, server: ForkServer, spec: LaunchSpec, streams: Streams, listen: Callable[[int, Receiver], None]
    ) -> None:
        self._server = server
        self._spec = spec
        self._streams = streams
        self._listen = listen
        self._spec_path = spec.save()
        self._to_start = list(spec.ranks)
        # Ranks that were requested and have not ended, by the server's key.
        self._asked: dict[int, int] = {}
        self._receivers: dict[int, Receiver] = {}  # by rank

    @property
    def ranks(self) -> Collection[int]:
        """The ranks that were requested and have not ended."""
        return self._asked.values()

    @property
    def pids(self) -> dict[int, int]:
        """Process ids by rank, of workers that were forked and have not exited."""
        return {rank: pid for rank in self.ranks if (pid := self.messages_of(rank).pid) is not None}

    @property
    def sessions(self) -> set[int]:
        """The sessions of all that were forked."""
        return {sent.pid for sent in self.all_messages.values() if sent.pid is not None}

    @property
    def are_all_forked(self) -> bool:
        """Whether all were forked, and their process ids are known."""
        return not self._to_start and len(self.pids) == len(self._asked)

    @property
    def all_messages(self) -> dict[int, WorkerMessages]:
        """The messages of each worker, by rank, also of workers that have exited."""
        return {rank: receiver.messages for rank, receiver in self._receivers.items()}

    def messages_of(self, rank: int) -> WorkerMessages:
        """What this one has sent."""
        return self._receivers[rank].messages

    def start_some(self) -> None:
        """Requests workers, a few at a time: with the queues of both sockets full, both sides would
        wait."""
        while self._to_start and len(self._asked) - len(self.pids) < _MOST_ASKED:
            rank = self._to_start.pop(0)
            receiver = self._receivers[rank] = Receiver()
            self._listen(rank, receiver)
            fds = (*self._streams.for_rank(rank), receiver.worker_fd)
            self._asked[self._server.start_worker(self._spec_path, rank, fds)] = rank
            receiver.handed_over()
            if not self._to_start:
                self._streams.handed_over()

    def start_no_more(self) -> None:
        """Leaves out workers that were not requested yet."""
        if self._to_start:
            self._to_start.clear()
            self._streams.handed_over()

    def ended(self, message: dict[str, Any]) -> tuple[int, int] | None:
        """The rank and status of a worker that has exited, according to the server; None: it
        reports something else.

        Raises:
            LaunchError: the worker could not be forked.
        """
        rank = self._asked.pop(message.get("key", 0), None)
        if rank is None:
            return None
        if "error" in message:
            raise LaunchError(f"rank {rank} of {self._spec.world_size} could not be started: {message['error']}")
        # Its last messages may still be in the pipe: the server's message comes by another way.
        self._receivers[rank].read()
        return rank, message["status"]

    def send(self, number: int, ranks: Collection[int]) -> None:
        """Sends a signal to the running ones of these ranks."""
        for rank, pid in self.pids.items():
            if rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def kill(self) -> None:
        """Kills all, with their process groups."""
        for pid in self.pids.values():
            kill_worker(pid)

    def read(self) -> None:
        """Reads what they have sent by now."""
        for receiver in self._receivers.values():
            receiver.read()

    def close(self) -> None:
        """Closes the pipes of their messages."""
        for receiver in self._receivers.values():
            receiver.close()
