"""Processes that stay, and run one function after another: see ``crew``.

A training of four processes costs 0.23 s of the processor for each if they are forked for it, and
0.14 s where they were there."""

import contextlib
import gc
import os
import pickle
import random
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from stuck import telling

import lockstep
from lockstep._base.errors import LaunchError
from lockstep._base.stopping import SIGNALS
from lockstep._launch.server import ForkServer
from lockstep._launch.spec import Call, LaunchSpec, worker_environ
from lockstep._state.recovery.software import numerics
from lockstep._sync import exact


class StandingCrew:
    """So many processes, forked by a server. They end with it.

    Args:
        server: the fork server, which is asked by nobody else meanwhile.
        nproc: how many.
        directory: for what they are told, and what they print.
    """

    def __init__(self, server: ForkServer, nproc: int, directory: Path) -> None:
        directory.mkdir()
        self._log = directory / "log"
        self._are_changed = False
        call = Call(payload=pickle.dumps((telling(serve), ())), sys_path=tuple(sys.path), sys_argv=tuple(sys.argv))
        path = LaunchSpec(program=call, nproc=nproc, private_dir=str(directory)).save()
        self._ends: list[socket.socket] = []
        for rank in range(nproc):
            ours, theirs = socket.socketpair()
            self._ends.append(ours)
            with theirs, self._log.open("a") as log, Path(os.devnull).open("w") as nowhere:
                server.start_worker(path, rank, [theirs.fileno(), log.fileno(), log.fileno(), nowhere.fileno()])

    def is_there(self) -> bool:
        """Whether all processes still wait to be asked, and are as they were: the server may have
        ended meanwhile, and they with it."""
        if self._are_changed:
            return False
        for end in self._ends:
            try:
                if end.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                    return False
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return False
        return True

    def run(self, spec: LaunchSpec, fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
        """What ``fn(*args)`` returned in each process, by rank.

        Raises:
            LaunchError: it has raised something in one of them. The others may hang, and are to be
                ended.
        """
        results: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, end in enumerate(self._ends):
                _send(end, (spec, rank, fn, args))
                selector.register(end, selectors.EVENT_READ, rank)
            while len(results) < len(self._ends):
                for key, _ in selector.select():
                    answer = _receive(self._ends[key.data])
                    if answer is None or answer[1]:
                        told = "it has ended" if answer is None else answer[1]
                        raise LaunchError(f"rank {key.data} of {len(self._ends)} failed: {told}\n{self._log.read_text()}")
                    results[key.data], _, is_changed = answer
                    self._are_changed |= is_changed
                    selector.unregister(key.fileobj)
        return [results[rank] for rank in range(len(self._ends))]

    def close(self) -> None:
        """Ask no more."""
        for end in self._ends:
            end.close()


def serve() -> None:
    """Run what is asked for, until nobody can ask any more."""
    num_modules, at_first = 0, numerics()
    with socket.socket(fileno=os.dup(0)) as end:
        while (asked := _receive(end)) is not None:
            if num_modules < len(sys.modules):
                # a run collects garbage when it closes its process group, and need not go through
                # all of PyTorch
                gc.freeze()
                num_modules = len(sys.modules)
            try:
                result, told = _run(*asked), ""
            except BaseException:
                result, told = None, traceback.format_exc()
            # What one function left in PyTorch's settings would be another's, in a test that
            # compares it with what other processes had.
            _send(end, (result, told, numerics() != at_first))


def _run(spec: LaunchSpec, rank: int, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """As in a process that has just been forked, with the team closed that was left to the end of
    the process."""
    join, size = lockstep.join, exact.MAX_SINGLE_MESSAGE_BYTES
    teams: list[lockstep.Team] = []

    def remember(*args: Any, **settings: Any) -> lockstep.Team:
        teams.append(join(*args, **settings))
        return teams[-1]

    os.chdir(spec.cwd)
    os.environ.clear()
    os.environ.update(worker_environ(spec, rank))
    for number in SIGNALS:  # one that was asked to stop ignores them afterwards
        signal.signal(number, signal.SIG_DFL)
    random.seed()
    numpy.random.seed()
    torch.seed()
    lockstep.join = remember
    try:
        result = fn(*args)
        for team in teams:
            team.close()
        return result
    finally:
        lockstep.join = join
        exact.MAX_SINGLE_MESSAGE_BYTES = size


def _send(end: socket.socket, message: object) -> None:
    data = pickle.dumps(message)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # whoever asks next is told
        end.sendall(struct.pack("Q", len(data)) + data)


def _receive(end: socket.socket) -> Any:
    """The next message; None: there is none any more."""
    size = _read(end, 8)
    data = size and _read(end, *struct.unpack("Q", size))
    return pickle.loads(data) if data else None


def _read(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            more = end.recv(min(size - len(data), 1 << 20))
        except ConnectionResetError:
            more = b""
        if not more:
            return b""
        data += more
    return bytes(data)
