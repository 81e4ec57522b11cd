"""Promises of a verification's verdict: PASS only if every setting computed the same, and the
first difference is named. Pure."""

import dataclasses
from pathlib import Path

import pytest

from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.study import Task
from lockstep._tools.verify.diagnosis.one_device import OneDevice
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference
from lockstep._tools.verify.verdict import verdict
from lockstep._tools.verify.verification import SettingResult, Summary, Verification

pytestmark = pytest.mark.timeout(30)
SUMMARY = Summary(
    first_step=1,
    num_steps=4,
    samples_by_rank=(8,),
    weights="abc",
    loss=None,
    strategy="exact",
    learned=True,
    each_sample_once=True,
)
BAD = {
    "differs": {"difference": Difference(step=2, stage="loss")},
    "fails": {"status": "failed", "summary": None},
    "takes too long": {"status": "timeout", "summary": None},
    "never ran": {"status": "not run", "summary": None},
    "learned nothing": {"summary": Summary(**{**vars(SUMMARY), "learned": False})},
    "is unknown": {"summary": None},
}


def result(number, *, killed_at=None, **fields):
    setting = Setting(number=number, world_size=number, killed_at=killed_at)
    return SettingResult(setting=setting, **{"status": "ok", "summary": SUMMARY, **fields})


def verification(*results, one_device=None):
    machine = Machine.__new__(Machine)
    task = Task(script=Path("train.py"))
    return Verification(task=task, machine=machine, shards=4, threads=1, results=results, one_device=one_device)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("bad", BAD)
def test_one_setting_that_is_not_like_the_first_is_a_fail(bad, place):
    results = [result(number, **(BAD[bad] if number == place else {})) for number in range(3)]
    assert verification(*results).verdict == "fail"


@pytest.mark.parametrize(
    ("status", "verdict"),
    [("same", "pass"), ("skipped", "pass"), ("sum", "fail"), ("differs", "fail"), ("interrupted",) * 2],
)
def test_one_device_counts_as_a_setting_does(status, verdict):
    assert verification(result(1), one_device=OneDevice(status=status, shards=4)).verdict == verdict


def test_what_is_skipped_is_no_fail_and_what_is_interrupted_is_no_verdict():
    assert verification(result(1), result(2, status="skipped", summary=None)).verdict == "pass"
    found = verification(result(1), result(2, status="interrupted", summary=None), result(3, **BAD["differs"]))
    assert (found.verdict, found.passed) == ("interrupted", False)


@pytest.mark.parametrize("uses", [(True, True), (True, False), (True, None), (False, False), (None, None)])
def test_each_sample_once_is_said_only_if_it_is_so_in_every_setting(uses):
    results = [
        result(number, summary=dataclasses.replace(SUMMARY, each_sample_once=once)) for number, once in enumerate(uses, 1)
    ]
    said = " ".join(verdict(verification(*results)))
    assert ("each sample used once" in said) == (set(uses) == {True})
    assert ("more than once" in said) == (False in uses)


def at(step, **fields):
    return {"difference": Difference(step=step, stage="weights", **fields)}


def test_the_first_difference_is_named_and_one_of_a_resume_only_if_there_is_no_other():
    found = verification(result(1), result(2, **at(7)), result(3, **at(5)), result(4, killed_at=2, **at(2)))
    assert (found.worst.setting.number, found.differs_only_resumed) == (3, False)
    found = verification(result(1), result(2), result(4, killed_at=2, **at(2)))
    assert (found.worst.setting.number, found.differs_only_resumed) == (4, True)
    assert verification(result(1)).worst is None


def test_only_a_setting_that_fails_by_itself_ends_the_verification():
    own = [at(1, among=("rank 0", "rank 1")), at(1, detail="ranks 0, 1 ran the same shard"), BAD["fails"]]
    assert [result(2, **fields).is_bad for fields in (*own, at(1), BAD["learned nothing"])] == [True] * 3 + [False] * 2
