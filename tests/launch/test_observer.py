"""The seam between the launcher and what explains a run."""

from pathlib import Path

import pytest

from lockstep._base import extensions, process_observer
from lockstep._base.observers import Observers
from lockstep._launch.observer import Launch, Observer

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"


class _Knows(Observer):
    def last_seen(self, rank):
        return f"rank {rank} slept"

    def ended(self, rank, status):
        self.launch.end((rank, status))


class _Fails(Observer):
    def last_seen(self, rank):
        raise OSError("no such file")

    def ended(self, rank, status):
        raise OSError("no such file")


@pytest.fixture
def only(monkeypatch):
    """``only(kind, **made)``: these extensions of a kind, and no others, are installed."""

    def install(kind, **made):
        monkeypatch.setattr(extensions, "names", lambda asked: list(made) if asked == kind else [])
        monkeypatch.setattr(extensions, "load", lambda _, name: made[name])

    yield install
    process_observer.installed.cache_clear()


def test_a_question_is_answered_by_the_first_observer_that_knows_and_errors_of_others_do_not_matter(only, capfd):
    def cannot_start(launch):
        raise ImportError("no module named there")

    ended = []
    only("observers", broken=cannot_start, failing=_Fails, ignorant=Observer, knowing=_Knows)
    observers = Observers("observers", Launch(private_dir="", world_size=2, ranks=(0, 1), end=ended.append))
    assert "broken" in capfd.readouterr().err
    assert observers.ask(lambda observer: observer.last_seen(1)) == "rank 1 slept"
    assert observers.ask(lambda observer: observer.who_waits((1,))) is None
    observers.tell(lambda observer: observer.ended(1, -9))
    assert ended == [(1, -9)]


def test_an_error_that_no_observer_knows_needs_none(only):
    class Explains(process_observer.ProcessObserver):
        def explain_error(self, error):
            return "It is too small." if isinstance(error, ValueError) else ""

    def in_words_of(error, **observers):
        process_observer.installed.cache_clear()
        only("process_observers", **observers)
        return process_observer.explain_error(error)

    assert in_words_of(ValueError()) == ""
    assert in_words_of(ValueError(), ignorant=process_observer.ProcessObserver, explains=Explains) == "It is too small."
    assert in_words_of(KeyError(), explains=Explains) == ""
