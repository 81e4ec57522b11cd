"""A resumed run equals the undisturbed one in its whole state, after every step.

Each script saves itself after every step. From each of these checkpoints a run is resumed to its
end: right after its state is restored it is what was saved, and all that the run saves from then on
is what the undisturbed run has saved, every checkpoint, value and bit of it. So is what it logs."""

import functools
from collections import Counter

import pytest
from whole_state import SCRIPTS, differences, restored_part, trained

pytestmark = pytest.mark.timeout(60)
SETTINGS = {"shards": 3, "threads": 1, "progress": "off"}
OF_A_SCRIPT = {
    "two phases a step": {"accumulate": 2},
    "two passes an epoch": {"precision": "16-mixed"},
    "samplers with generators": {"workers": 1},
}
UNSAVED = {
    "a second loader that goes round by itself": [3],
    "a second loader in passes counted by the script": [3],
}
"""The steps after which a run cannot be saved, since it is unknown whether the second loader
begins again."""
GO_ON = [
    "a library that counts its epochs",
    "the best weights and early stopping",
    "passes counted by the script",
    "registered state",
    "two passes an epoch",
]


def resumed_from(numbers, name, **given):
    """What runs do that are resumed from these checkpoints of ``whole``."""
    return [trained(name, f"from-{number}", f"whole/{number}", **given) for number in numbers]


def at_once(name, settings):
    """All in one process: the undisturbed run, and some that are resumed, one of them from the end
    of the last epoch."""
    whole = trained(name, "whole", **settings)
    last = len(whole.saved)
    numbers = sorted({1, last // 2, last - 3})
    return whole, dict(zip(numbers, resumed_from(numbers, name, **settings), strict=True))


def longer(name, settings):
    """A finished run, one that is started again for more epochs, and one of as many from the
    beginning."""
    short = trained(name, "short", num_epochs=2, **settings)
    again = trained(name, "again", f"short/{len(short.saved) - 1}", num_epochs=4, **settings)
    return short, again, trained(name, "long", num_epochs=4, **settings)


def steps(states):
    return [int(state["manifest.step"]) for state in states]


def after(step, course):
    """What was saved after a later step; from the last step: the end of the run."""
    return [state for state in course.saved if steps([state])[0] > step] or course.saved[-1:]


def check(course, source, whole, told):
    """That a course is that of the whole one, from a state that this one has saved."""
    assert course.restored, told
    for state in course.restored:
        assert not differences(restored_part(source), state), told
    [step] = steps([source])
    expected, found = after(step, whole), after(step, course)
    assert steps(found) == steps(expected), told
    for one, other in zip(expected, found, strict=True):
        assert not differences(one, other), f"{told}, saved after step {steps([other])}"
    check_logged(step, course.logged, whole.logged, told)


def check_logged(step, found, whole, told):
    """That a run which resumes after a step logs what comes after it, and nothing else: of the
    step's own, at most what is logged between it and the next."""
    assert [each for each in found if each.step > step] == [each for each in whole if each.step > step], told
    again = Counter(each for each in found if each.step <= step)
    assert again <= Counter(each for each in whole if each.step == step), told


@pytest.mark.quick
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_resumed_run_is_the_undisturbed_one_in_all_that_it_saves(standing_crew, name):
    [(whole, courses)] = standing_crew(1, at_once, name, {**SETTINGS, **OF_A_SCRIPT.get(name, {})})
    assert {*steps(whole.saved)} == {*range(1, steps(whole.saved)[-1] + 1)}.difference(UNSAVED.get(name, []))
    for number, course in courses.items():
        check(course, whole.saved[number], whole, f"{name}, from checkpoint {number}")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_is_from_every_step_at_any_number_of_processes(standing_crew, name):
    settings = {**SETTINGS, **OF_A_SCRIPT.get(name, {})}
    [whole] = standing_crew(1, functools.partial(trained, name, "whole", **settings))
    for nproc in (1, 2, 3):
        numbers = range(nproc - 1, len(whole.saved), 3)
        courses, *_ = standing_crew(nproc, functools.partial(resumed_from, numbers, name, **settings))
        for number, course in zip(numbers, courses, strict=True):
            check(course, whole.saved[number], whole, f"{name}, from checkpoint {number} by {nproc}")


@pytest.mark.quick
@pytest.mark.parametrize("name", GO_ON)
def test_a_finished_run_that_goes_on_is_one_that_was_longer_from_the_beginning(standing_crew, name):
    [(short, again, long)] = standing_crew(1, longer, name, SETTINGS)
    check(again, short.saved[-1], long, name)


def again(name, settings):
    """A finished run, and what a launch does that starts it again."""
    whole = trained(name, "whole", **settings)
    return whole, trained(name, "again", f"whole/{len(whole.saved) - 1}", **settings)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["an evaluation that decides", "passes counted by the script"])
def test_a_finished_run_that_is_started_again_leaves_all_as_it_was_and_logs_nothing(standing_crew, name):
    [(whole, after)] = standing_crew(1, again, name, SETTINGS)

    def objects(state):
        """Without the list that the script itself goes on with."""
        return {place: text for place, text in state.items() if "seen" not in place}

    assert not differences(objects(whole.ended), objects(after.ended))
    assert not differences(whole.saved[-1], after.saved[-1])
    assert not after.logged


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "length", "num_epochs", "behind"),
    [
        ("passes counted by the script", 3, 2, []),
        ("an evaluation that decides", 2, 3, ["evaluate", "evaluate", "step"]),
    ],
)
def test_a_run_logs_in_order_and_by_step_and_epoch(standing_crew, name, length, num_epochs, behind):
    """``length``: steps of an epoch; ``behind``: what the script logs after the last one."""
    course, _ = standing_crew(2, functools.partial(trained, name, "whole", **SETTINGS))
    expected = []
    for epoch in range(num_epochs):
        first, last = epoch * length + 1, (epoch + 1) * length
        expected += [(step, "step", epoch) for step in range(first, last + 1)]
        expected += [(last, event, epoch) for event in ("evaluate", "step", "epoch")]
    expected += [(length * num_epochs, event, num_epochs - 1) for event in behind]
    assert [(each.step, each.event, each.epoch) for each in course.logged] == expected
    for each in course.logged:
        is_apart = each.event == "step" and "'loss'" not in each.values
        assert (each.apart != "None") == is_apart, each
    for step, logged in course.logged_before:  # otherwise a run that is killed then has lost them
        assert logged == [*range(1, step + 1)]


@pytest.mark.quick
def test_a_checkpoint_due_where_it_cannot_be_saved_is_saved_after_the_next_step(standing_crew):
    settings = {**SETTINGS, "checkpoint_every": 3}
    course, _ = standing_crew(
        2, functools.partial(trained, "a second loader that goes round by itself", "whole", **settings)
    )
    assert [*dict.fromkeys(steps(course.saved))] == [4, 6]
