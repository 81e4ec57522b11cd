"""Which call of a script is writing, as a sample of its stack shows it."""

import io
import json
import os
import pickle
import shutil
import sys

import pytest
import torch

from lockstep.tools.explain.activity import doing_in
from lockstep.tools.explain.saving import Saving
from lockstep.tools.explain.slow_saving import SlowSaving, describe
from lockstep.tools.explain.writes import write_in as look  # a name that is none of writing


class Seen(io.RawIOBase):
    """A file that notes what its writer is seen at."""

    def __init__(self):
        super().__init__()
        self.doing = self.write_seen = None

    def write(self, data):
        self.write_seen, self.doing = look(sys._getframe()), doing_in(sys._getframe())
        return len(bytes(data))

    def writable(self):
        return True


def fsync(file):
    """What a script has put in the place of ``os.fsync``."""
    file.write(b"")


def with_torch(file):
    torch.save(torch.ones(3), file)


def with_copy(file):
    shutil.copyfileobj(io.BytesIO(b"content"), file)


def with_pickle(file):
    pickle.dump([1, 2], file)


def with_fsync(file):
    os.fsync(
        file,
    )


@pytest.mark.parametrize(
    ("save", "call"),
    [
        (with_torch, "torch.save"),
        (with_copy, "shutil.copyfileobj"),
        (with_pickle, "pickle.dump"),
        (with_fsync, "os.fsync"),
    ],
)
def test_a_write_is_named_with_the_line_of_the_script_that_calls_it(monkeypatch, save, call):
    monkeypatch.setattr(os, "fsync", fsync)
    file = Seen()
    save(file)
    first = save.__code__.co_firstlineno
    assert (file.write_seen.file, file.write_seen.function, file.write_seen.call) == (__file__, save.__name__, call)
    assert first < file.write_seen.line <= first + 3
    assert file.doing == "writing a file"


def test_what_only_has_such_a_name_is_no_write():
    seen = []

    def save(_):
        seen.append(look(sys._getframe()))

    class Optimizer:
        def save_for_backward(self):
            seen.append(look(sys._getframe()))

    save(1)
    Optimizer().save_for_backward()
    json.dumps([1])
    [1].copy()
    assert seen == [None, None]


def saved(saves, pause_s, *, steps=True):
    """What is lost by saves of so many seconds, with pauses between them, and a sample in each 0.1 s."""
    saving, now, step = Saving(), 0.0, 0
    write = Seen()
    with_pickle(write)
    for save_s in saves:
        step += steps
        for seen, seconds in ((write.write_seen, save_s), (None, pause_s)):
            for _ in range(round(seconds / 0.1)):
                now += 0.1
                if seen is not None:
                    saving.note(seen, now, 0.1, step)
    return saving.lost()


@pytest.mark.parametrize(
    ("saves", "pause_s", "found"),
    [
        ([5, 5, 5], 0.6, (5.0, 5.6)),
        ([5, 5], 0.6, (5.0, 5.6)),
        ([2] * 5, 0, (2.0, 2.0)),  # the steps between them are too brief to be seen
        ([35, 35], 20, (35.0, 55.0)),
        ([5, 5, 5], 15, (5.0, 20.0)),
        ([5, 5], 15, None),  # of two saves nobody knows how often they come
        ([5, 5, 5], 60, None),
        ([15], 0.6, None),  # once
        ([0.2] * 40, 0.3, (0.2, 0.5)),
        ([0.2] * 5, 0.3, None),  # less than 4 s altogether
        ([0.1] * 300 + [5, 5, 5], 5, (5.0, 10.0)),  # it has become slow
        ([5, 5, 5] + [0.1] * 300, 5, None),  # and is no longer
    ],
)
def test_time_is_lost_in_saving_where_saves_took_much_of_the_time_from_one_to_the_next(saves, pause_s, found):
    lost = saved(saves, pause_s)
    assert (lost and (lost.seconds, lost.every_s)) == (found and pytest.approx(found, rel=0.05))


def test_what_is_written_without_a_step_between_is_one_save():
    assert saved([5, 5, 5], 0.6, steps=False) is None


def record(rank, line="train.py:20 in save (os.fsync)", seconds=5.0):
    return {"rank": rank, "host": f"node{rank}", "saving": {"seconds": seconds, "every_s": 5.6, "line": line}}


def test_ranks_that_lose_time_in_saving_are_reported_once_and_again_elsewhere():
    saving, one = SlowSaving(), [record(1), {"rank": 0, "host": "node0"}]
    said = [saving.look(one) for _ in range(20)]
    assert [look for look, text in enumerate(said) if text] == [2]
    assert said[2].startswith("rank 1 on node1 writes slowly: 5.0 s of each 5.6 s, at train.py:20 in save (os.fsync). ")
    elsewhere = [record(1, line="train.py:40 in log (file.write)"), record(0)]
    said = [saving.look(elsewhere) for _ in range(20)]
    assert [look for look, text in enumerate(said) if text] == [2]


def test_of_many_ranks_the_slowest_is_shown_and_the_others_are_named():
    text = describe([record(rank, seconds=1.0 + rank / 10) for rank in range(5)])
    assert text.startswith("rank 4 on node4 writes slowly: 1.4 s of each 5.6 s, ")
    assert "(ranks 0 to 3 write slowly there, too)" in text
    assert "writes slowly: 9% of the time, at " in describe([record(1, seconds=0.5)])
