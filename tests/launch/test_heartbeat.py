"""The one thread that asks the launchers' store all the time: what it sees of the store, and that
nobody waits for it."""

import contextlib
import threading
import time
from types import SimpleNamespace

import pytest
from launch_helpers import until
from torch.distributed import HashStore

from lockstep._launch.elastic import heartbeat
from lockstep._launch.elastic.connection import ALL_RUNS
from lockstep._launch.elastic.heartbeat import Heartbeat, seconds_ahead
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.secret import Secret

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def start():
    """``start(store, keeps_store)``: a heartbeat of a launcher that asks this store."""
    with contextlib.ExitStack() as stack:

        def make(store, *, keeps_store=False):
            signed = SignedStore(store, Secret(b"a secret"), "here")
            connection = SimpleNamespace(
                another_client=lambda: signed,
                store=signed,
                server=object() if keeps_store else None,
                nodes=SimpleNamespace(node_rank=None),
                beat_s=0.25,
            )
            return connection, stack.enter_context(contextlib.closing(Heartbeat(connection)))

        yield make


class Silent(HashStore):
    """A store at the end of a link that was cut."""

    def __init__(self):
        super().__init__()
        self.is_restored = threading.Event()
        self.is_asked = threading.Event()

    def check(self, keys):
        self.is_asked.set()
        self.is_restored.wait()
        return True


def test_whoever_keeps_the_store_writes_what_time_it_is(start):
    store = HashStore()
    keeper, _ = start(store, keeps_store=True)
    other, _ = start(store)
    assert seconds_ahead(keeper) == 0.0
    assert abs(seconds_ahead(other)) < 20


def test_a_node_finds_how_far_its_clock_is_ahead_of_the_keepers(start):
    connection, _ = start(HashStore())
    connection.store.under(ALL_RUNS).set("clock", repr(time.time() - 1000))
    assert seconds_ahead(connection) == pytest.approx(1000, abs=20)


@pytest.mark.long
def test_a_store_that_does_not_answer_is_noticed_and_nobody_waits_for_it(start):
    store = Silent()
    _, beats = start(store)
    assert store.is_asked.wait(10)
    until(lambda: beats.silence_s() > 1.0)
    beats.also(lambda _: None)
    beats.close()
    assert beats.error is None
    store.is_restored.set()


def test_what_is_done_no_more_is_at_its_end(start, monkeypatch):
    monkeypatch.setattr(heartbeat, "_CLOSE_S", 30.0)
    _, beats = start(HashStore())
    began, ended = [], []

    def act(_):
        began.append(0)
        time.sleep(0.1)
        ended.append(0)

    beats.also(act)
    until(lambda: began)
    beats.also(None)
    num_done = len(ended)
    assert len(began) == num_done
    answered_at = beats.answered_at
    until(lambda: beats.answered_at > answered_at + 0.5)
    assert len(began) == num_done


class Gone(HashStore):
    """A store whose keeper is gone."""

    def check(self, keys):
        raise ConnectionError("reset by peer")


def test_an_error_of_the_store_is_kept_and_ends_it(start):
    _, beats = start(Gone())
    until(lambda: isinstance(beats.error, ConnectionError))
    answered_at = beats.answered_at
    until(lambda: beats.silence_s() > 1.0)
    assert beats.answered_at == answered_at


def test_an_error_of_what_else_is_done_is_kept_and_whoever_keeps_the_store_goes_on_to_write_what_time_it_is(start):
    store, error, num_done = HashStore(), ValueError("forged"), []
    keeper, beats = start(store, keeps_store=True)

    def act(_):
        num_done.append(1)
        raise error

    beats.also(act)
    until(lambda: beats.error is error)
    written = keeper.store.under(ALL_RUNS).get("clock")
    until(lambda: keeper.store.under(ALL_RUNS).get("clock") != written)
    assert len(num_done) == 1


def test_an_error_of_what_is_done_no_more_is_nobodys(start, monkeypatch):
    monkeypatch.setattr(heartbeat, "_CLOSE_S", 0.01)
    _, beats = start(HashStore())
    began, goes_on = threading.Event(), threading.Event()

    def act(_):
        began.set()
        goes_on.wait()
        raise ValueError("of a round that is over")

    done = threading.Event()
    beats.also(act)
    began.wait(10)
    beats.also(lambda _: done.set())
    goes_on.set()
    assert done.wait(10)
    assert beats.error is None
