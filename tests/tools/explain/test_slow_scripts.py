"""Which rank of a script is called slow, from samples; and which is not."""

import json
import os
import sys

import pytest

from lockstep._base.reports import SLOW
from lockstep._tools.explain.slow_scripts import SlowScripts
from lockstep._tools.explain.time_samples import BLOCK_S, WAITING, TimeSamples, place_of


def place(function, count, visits=None, line=7, call=""):
    about = {"file": "/home/me/train.py", "function": function, "line": line, "doing": "in the script", "call": call}
    return {**about, "count": count, "visits": count if visits is None else visits}


def block(number, *places, count=80, steps=None, done=100, **more):
    """A block of 10 s, of which the rank waits what is left."""
    waiting = count - sum(each["count"] for each in places)
    steps = count if steps is None else steps
    own = {"number": number, "count": count, "waiting": waiting, "steps": steps, "begun": 0, "done": done}
    return {**own, "computed": 0.2, "starved": 0.0, "places": list(places), "functions": [], **more}


def told(*ranks, are_scripts=True):
    """What is reported of these ranks, whose blocks are given."""
    scripts = SlowScripts()
    records = [{"rank": rank, "host": "vm", "spent": blocks} for rank, blocks in enumerate(ranks)]
    reports = scripts.look(records, are_scripts=are_scripts)
    assert scripts.look(records, are_scripts=are_scripts) == [], "told twice"
    return [(report.kind, report.ranks, report.cause, report.places) for report in reports]


def both(*places, **more):
    return [block(number, *places, **more) for number in (5, 6)]


USUAL = (place("forward", 20),)


def test_a_rank_that_spends_time_in_a_function_in_each_step_is_named_with_the_line():
    slow = both(place("forward", 20), place("draw_picture", 40, line=9), place("draw_picture", 10, line=11))
    expected = [(SLOW, (1,), "script", {1: "/home/me/train.py:9 in draw_picture"})]
    assert told(both(*USUAL), slow, both(*USUAL)) == expected
    assert told(both(*USUAL), slow, both(*USUAL), are_scripts=False) == [], "a run knows it by its phases"


def test_a_function_is_named_for_what_it_does_itself_and_in_those_that_it_calls():
    own = (place("forward", 20), place("draw_picture", 16, line=9), place("compress", 16, line=30))
    whole = [
        place("step", 75, line=40),
        place("draw_picture", 32, line=9),
        place("forward", 20),
        place("compress", 16, line=30),
    ]
    slow = both(*own, starved=0.05, functions=whole)
    usual = both(*USUAL, functions=[place("step", 75), place("forward", 20)])
    assert told(usual, slow) == [(SLOW, (1,), "script", {1: "/home/me/train.py:9 in draw_picture"})]
    both_call_it = both(*USUAL, functions=[place("step", 75), place("draw_picture", 30), place("forward", 20)])
    assert told(both_call_it, slow) == [], "the others wait in what it calls"


@pytest.mark.parametrize(
    ("why", "slow", "others"),
    [
        ("it is in one block only", [block(5, *USUAL), block(6, place("log", 50))], both(*USUAL)),
        (
            "it is one of few long steps: an evaluation",
            both(place("evaluate", 50, visits=6), place("forward", 20)),
            both(*USUAL),
        ),
        ("it began in the step before", both(place("evaluate", 80, visits=0)), both()),
        ("others take its processor", both(place("forward", 60), starved=0.4), both(*USUAL)),
        ("all do it", both(place("forward", 60)), both(place("forward", 55))),
        ("the others do not wait, but do something else", both(place("log", 60)), both(place("count", 60))),
        ("they do not go on together", both(place("log", 60)), both(*USUAL, done=20)),
        ("there are too few steps", both(place("log", 60, visits=2), steps=3), both(steps=3)),
    ],
)
def test_a_rank_is_not_slow_if(why, slow, others):
    assert told(others, slow) == [], why


def test_ranks_that_lose_most_of_their_time_in_files_are_named_with_the_call():
    saves = both(place("save", 70, visits=2, call="os.fsync"))
    expected = [(SLOW, (1, 2), "storage", dict.fromkeys((1, 2), "/home/me/train.py:7 in save"))]
    assert told(both(*USUAL), saves, saves) == expected
    assert told(both(*USUAL), saves, saves, are_scripts=False) == expected
    assert told(both(*USUAL), both(place("save", 70, visits=1, call="os.fsync"))) == [], "twice in 20 s"
    assert told(both(*USUAL), both(place("save", 70, visits=2, call="pickle.dump"), computed=0.8)) == [], "it computes"


def test_samples_are_counted_by_line_and_step_and_a_call_that_goes_on_counts_once():
    spent = TimeSamples()
    frame = sys._getframe()
    for number in range(8 * 40):  # 40 s
        spent.note(frame, number // 200, 3, 10_000 + number / 8)
    first, second, *_ = spent.blocks
    assert first["number"] + 1 == second["number"] == (10_000 + BLOCK_S * 2) // BLOCK_S
    assert first["count"] == 8 * BLOCK_S
    [here] = first["places"]
    assert here["file"] == __file__
    assert {**here, "visits": 0} == {**first["functions"][0], "visits": 0}
    assert [block["places"][0]["visits"] for block in spent.blocks] == [0, 1]
    assert json.loads(json.dumps(spent.blocks)) == spent.blocks


def test_a_function_that_is_at_another_line_in_each_step_is_in_each_step():
    spent = TimeSamples()
    for step in range(8 * 30):
        if step % 2:
            spent.note(sys._getframe(), step, 3, 10_000 + step / 8)
        else:
            spent.note(sys._getframe(), step, 3, 10_000 + step / 8)
    [function, *_] = spent.blocks[0]["functions"]
    assert function["visits"] == 8 * BLOCK_S
    assert function["function"] == sys._getframe().f_code.co_name


def test_the_place_of_a_thread_is_the_scripts_line_with_the_call_that_writes(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(place_of(sys._getframe())))

    def save(file):
        os.fsync(file.fileno())

    with (tmp_path / "file").open("w") as file:
        save(file)
    seen.append(place_of(sys._getframe()))
    assert seen[0][1::3] == ("save", "os.fsync")
    assert seen[1][1] == sys._getframe().f_code.co_name
    assert seen[1][4] == ""
    assert place_of(None) == WAITING
