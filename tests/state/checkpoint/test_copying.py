"""Promises of the copies that several threads make: all is copied when the call returns, whatever
becomes of the threads, and none goes on behind it."""

import threading
import time

import numpy as np
import pytest
import torch

from lockstep._state.checkpoint import copying
from lockstep._state.checkpoint.copying import copy_pieces, is_memory, pieces_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]

MANY = 9


@pytest.fixture
def threads(monkeypatch):
    """Four threads that share small pieces."""
    monkeypatch.setattr(copying, "num_cores", lambda: 4)
    monkeypatch.setattr(copying, "_PIECE_BYTES", 64)


def pairs(num=MANY, size=64):
    """Pieces to copy, and where to."""
    return [(np.zeros(size, np.uint8), np.full(size, number + 1, np.uint8)) for number in range(num)]


def are_copied(pieces):
    return all((into == of).all() for into, of in pieces)


def helpers():
    return [thread for thread in threading.enumerate() if thread.name == "lockstep-copy"]


def copy_by(seen, monkeypatch, *, fails=()):
    """Slow copies, so that every thread gets one, which record their threads."""
    copyto = np.copyto

    def slow(into, of):
        seen.add(threading.current_thread().name)
        time.sleep(0.05)
        if of[0] in fails:
            raise MemoryError("full")
        copyto(into, of)

    monkeypatch.setattr(np, "copyto", slow)


def test_all_threads_copy_and_none_is_left(threads, monkeypatch):
    seen = set()
    copy_by(seen, monkeypatch)
    pieces = pairs()
    copy_pieces(pieces)
    assert are_copied(pieces)
    assert seen == {"MainThread", "lockstep-copy"}
    assert helpers() == []


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 6400])
def test_a_tensor_of_any_size_is_whole(threads, size):
    tensor, copy = torch.randint(255, (size,), dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    copy_pieces(pieces_of(copy, tensor))
    assert torch.equal(copy, tensor)


def test_little_is_copied_without_threads(monkeypatch):
    monkeypatch.setattr(copying, "num_cores", lambda: 4)
    monkeypatch.setattr(threading, "Thread", None)
    pieces = pairs()
    copy_pieces(pieces)
    assert are_copied(pieces)


def test_without_threads_all_is_copied(threads, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    pieces = pairs()
    copy_pieces(pieces)
    assert are_copied(pieces)


@pytest.mark.parametrize("failing", range(1, MANY + 1))
def test_the_error_of_any_thread_is_raised(threads, monkeypatch, failing):
    copy_by(set(), monkeypatch, fails=(failing,))
    with pytest.raises(MemoryError, match="full"):
        copy_pieces(pairs())
    assert helpers() == []


def test_no_thread_goes_on_after_an_interrupt(threads, monkeypatch):
    copyto, pieces = np.copyto, pairs(100)

    def interrupted(into, of):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.02)
        copyto(into, of)

    monkeypatch.setattr(np, "copyto", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy_pieces(pieces)
    assert helpers() == []
    before = [into.copy() for into, _ in pieces]
    time.sleep(0.1)
    assert all((into == old).all() for (into, _), old in zip(pieces, before, strict=True))
    assert sum((into == of).all() for into, of in pieces) < len(pieces) / 2


class Halved(torch.Tensor):
    """A tensor whose elements are computed."""


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(2, 3), True),
        (torch.ones(()), True),
        (torch.ones(0, 3), True),
        (torch.ones(4)[1:], True),
        (torch.ones(3).bfloat16(), True),
        (torch.ones(3, dtype=torch.complex64), True),
        (torch.ones(2, 3).t(), False),
        (torch.ones(1).expand(3), False),
        (torch.ones(3, dtype=torch.complex64).conj(), False),
        (torch._neg_view(torch.ones(3)), False),
        (torch.ones(3).as_subclass(Halved), False),
        (torch.nn.Parameter(torch.ones(3)), False),
        (torch.ones(3, device="meta"), False),
        (torch.eye(3).to_sparse(), False),
    ],
    ids=str,
)
def test_only_what_lies_in_memory_as_it_is_is_copied_by_bytes(tensor, expected):
    assert is_memory(tensor) == expected
