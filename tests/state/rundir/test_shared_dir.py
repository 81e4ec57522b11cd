"""Promises of the check that every machine sees the run directory: the hosts that do not are named
on every rank, and nothing is left of it. The ranks are threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from lockstep._state.rundir import shared_dir
from lockstep._state.rundir.shared_dir import hosts_without, write_mark

pytestmark = pytest.mark.timeout(30)
HOSTS = ["a", "a", "b", "b", "c"]


def checked(directories):
    """What the check returns, or raises, on each rank, whose directories these are."""
    values, found = [None] * len(directories), []
    meeting = threading.Barrier(len(directories), lambda: found.append(list(values)))

    def run(rank):
        def gather(value):
            values[rank] = value
            meeting.wait(timeout=20)
            return found[-1]

        world = SimpleNamespace(rank=rank, local_rank=HOSTS[:rank].count(HOSTS[rank]), host=HOSTS[rank])
        collectives = SimpleNamespace(broadcast_plain=lambda value: gather(value)[0], all_gather_plain=gather)
        try:
            return hosts_without(directories[rank], "token", world, collectives)
        except OSError as error:
            return type(error)

    with ThreadPoolExecutor(len(directories)) as threads:
        return list(threads.map(run, range(len(directories))))


def test_where_all_see_it_nobody_is_named_and_nothing_is_left(tmp_path):
    assert checked([tmp_path] * 5) == [[]] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("apart", "named"), [((2, 3), ["b"]), ((4,), ["c"]), ((2, 3, 4), ["b", "c"]), ((1,), [])])
def test_hosts_with_another_directory_are_named_on_every_rank(tmp_path, monkeypatch, apart, named):
    # One rank of each machine looks.
    monkeypatch.setattr(shared_dir, "PATIENCE_S", 0.0)
    own, other = tmp_path / "run", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    assert checked([other if rank in apart else own for rank in range(5)]) == [named] * 5
    assert [*own.iterdir(), *other.iterdir()] == []


def test_a_mark_of_another_content_is_not_that_of_rank_0(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_dir, "PATIENCE_S", 0.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "seen-token").write_text("older")
    assert checked([tmp_path / ("other" if host == "c" else "run") for host in HOSTS]) == [["c"]] * 5


def test_a_file_system_may_show_a_new_file_late(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "late").mkdir()
    timer = threading.Timer(0.25, write_mark, [tmp_path / "late", "token"])
    timer.start()
    assert checked([tmp_path / ("late" if host == "b" else "run") for host in HOSTS]) == [[]] * 5
    timer.join()


def test_where_rank_0_cannot_write_all_are_told(tmp_path):
    assert checked([tmp_path / "missing"] * 5) == [OSError] * 5
