"""What the launchers of several machines tell each other of their workers."""

import json
import os
import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from lockstep.launch.elastic.places import Machine, Place, Start, answer_key, machine_key, place_all
from lockstep.launch.elastic.round import Round
from lockstep.launch.elastic.signed import SignedStore
from lockstep.launch.exchange import Exchange
from lockstep.launch.observer import Launch
from lockstep.launch.secret import Secret
from lockstep.tools.explain.black_box import BlackBox, box_path
from lockstep.tools.explain.launching.watching import Watching
from lockstep.world.machine.identity import shared_by

WAITING = [["/torch/distributed/distributed_c10d.py", 1, "all_reduce"], ["train.py", 3, "<module>"]]
WORKING = [["train.py", 7, "load"], ["train.py", 3, "<module>"]]


def box(directory, rank, *, stack, still_s):
    BlackBox(box_path(directory, rank)).write(
        {
            "rank": rank,
            "world_size": 2,
            "host": f"node{rank}",
            "machine": shared_by("pid"),
            "pid": os.getpid(),
            "launch": "one",
            "began_s": time.time() - 100,
            "program": "train.py",
            "time_s": time.time(),
            "since_s": time.time() - still_s,
            "worked_s": time.time() - still_s,
            "doing": {"activity": "in the script", "num_done": 30, "usual_s": 0.1, "step": 12},
            "stack": stack,
            "collective": None,
            "ended": None,
        }
    )


@pytest.fixture
def launchers(tmp_path):
    """Two launchers of a rank each: their directories, what watches their ranks, a function to have them look, what they have
    said, and the ends of their exchange."""
    said, watches = [], []
    exchanges = [Exchange(number, 2) for number in range(2)]
    directories = [tmp_path / str(number) for number in range(2)]
    for directory, exchange in zip(directories, exchanges, strict=True):
        directory.mkdir()
        launch = Launch(private_dir=str(directory), world_size=2, ranks=(), environ={}, exchange=exchange, end=said.append)
        watches.append(Watching(launch, said.append))

    def look():
        for watch in watches:
            watch.look()
        for mine, other in (exchanges, reversed(exchanges)):
            mine.receive({other.number: other.outgoing.encode()})

    return directories, watches, look, said, exchanges


@pytest.mark.parametrize("missing", [0, 1])
def test_the_first_launcher_says_once_that_a_rank_of_the_other_machine_is_missing_or_is_waited_for_there(launchers, missing):
    directories, watches, look, said, _ = launchers
    for rank in range(2):
        box(directories[rank], rank, stack=WORKING if rank == missing else WAITING, still_s=30.0)
    for _ in range(6):
        look()
    assert len(said) == 1
    assert f"rank {1 - missing} waits for rank {missing}.\n  rank {missing} on node{missing} (pid " in said[0]
    assert "in the script, after step 12 (30 collectives)" in said[0]
    assert "shows the ranks of the machine that it is called on" in said[0]
    for watch in watches:  # whoever ends first can give it as the reason
        assert f"rank {1 - missing} waits for rank {missing}" in watch.explain(())


def test_nothing_is_said_and_no_reports_are_carried_while_nobody_waits(launchers):
    directories, _, look, said, exchanges = launchers
    for rank in range(2):
        box(directories[rank], rank, stack=WAITING if rank else WORKING, still_s=1.0)
    for _ in range(3):
        look()
    assert said == []
    assert json.loads(exchanges[1].outgoing)["reports"] == []


@pytest.fixture
def rounds():
    """The rounds of two launchers, whose heartbeats are the test's; and what each has read."""
    store, read = SignedStore(HashStore(), Secret(b"a secret"), "here"), []
    heartbeat = SimpleNamespace(also=lambda _: None, silence_s=lambda: 0.0, answered_at=0.0, beat_s=0.25)
    for number in range(2):
        store.set(machine_key(number), json.dumps(asdict(Machine(host=f"node{number}", address="here", num_ranks=1))))
    place_all(store, 2, 0, Start(used=0, master_port=1))
    places = [Place(**json.loads(store.get(answer_key(number)))) for number in range(2)]
    rounds = [Round(store, heartbeat, place, lambda: 0) for place in places]
    for each in rounds:
        hear = each.exchange.receive
        each.exchange.receive = lambda messages, hear=hear: (read.append(dict(messages)), hear(messages))
    return rounds, read, store


def test_a_word_is_read_once_and_again_only_when_another_was_said(rounds):
    (first, second), read, store = rounds

    def beat(times):
        for _ in range(times):
            second._beat(store)
            first._beat(store)

    beat(8)
    assert read == []
    second.exchange.outgoing = "one"
    beat(20)
    assert [list(messages) for messages in read] == [[1]]
    assert first.exchange.received[1] == "one"
    second.exchange.outgoing = "another"
    beat(20)
    assert len(read) == 2
    assert first.exchange.received[1] == "another"


def test_the_first_hears_all_and_the_others_hear_the_first():
    first, third = Exchange(0, 4), Exchange(2, 4)
    assert (first.peers, third.peers) == ([1, 2, 3], [0])
    first.receive({1: b"", 2: b"five", 3: b""})
    assert first.received == {2: "five"}
    first.receive({3: b"seven"})
    assert first.received == {2: "five", 3: "seven"}
