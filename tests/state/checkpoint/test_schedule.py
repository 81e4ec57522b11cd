"""Promises of the schedule: all ranks cut after the same steps and in time, whatever their clocks,
whoever fails or is busy."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep._state.checkpoint.schedule import CheckpointSchedule

pytestmark = pytest.mark.timeout(60)
simulated = settings(deadline=None, max_examples=50)
MOST_STEPS = 64  # between two exchanges


class Ranks:
    """Some ranks that take the same steps.

    Args:
        step_s: how long each step takes.
        drifts: how fast the clock of each rank goes. (Each also has a zero of its own.)
        writes: how many steps each rank writes at a checkpoint.
        goes_well: what becomes of a checkpoint, by rank and the step that it was cut after.
        asked: by rank: the step in which it is asked to stop. All do in step ``stop[0]``, and say
            that it was rank ``stop[1]`` that was asked.
    """

    def __init__(self, every, step_s, drifts, writes=None, goes_well=lambda rank, step: True, asked=None):
        self.at_s = list(accumulate(step_s, initial=0.0))
        self.num_exchanges = self._step = 0
        self.cuts, self.failures, self.stop = [], [], None
        size = len(drifts)
        writing = [None] * size
        schedules = [CheckpointSchedule(every, is_alone=size == 1, clock=self._clock(*each)) for each in enumerate(drifts)]
        for step in range(1, len(self.at_s)):
            self._step = step
            for rank, schedule in enumerate(schedules):
                if writing[rank] is not None and step >= writing[rank] + (writes or [1] * size)[rank]:
                    schedule.written(well=goes_well(rank, writing[rank]))
                    writing[rank] = None
            are_asked = [size - rank if step >= (asked or {}).get(rank, len(self.at_s)) else 0 for rank in range(size)]
            (is_due,) = {schedule.is_due(step) for schedule in schedules}
            if not (is_due or (size == 1 and any(are_asked))):
                continue
            self.num_exchanges += 1
            numbers = [
                schedule.propose(step, is_busy=writing[rank] is not None, stop_request=are_asked[rank])
                for rank, schedule in enumerate(schedules)
            ]
            largest = list(map(max, zip(*numbers, strict=True)))
            ((must_save, failed),) = {schedule.settle(step, largest) for schedule in schedules}
            self.failures += [step] * failed
            if schedules[0].stop_request:
                assert must_save
                self.stop = (step, size - schedules[0].stop_request)
                break
            if must_save:
                assert writing == [None] * size
                writing = [step] * size
                self.cuts.append(step)
                for schedule in schedules:
                    schedule.begin_save()

    def _clock(self, rank, drift):
        return lambda: 1000.0 * rank + drift * self.at_s[self._step]


worlds = st.sampled_from([(1.0,), (1.0, 1.01), (0.9, 1.0, 1.1)])
any_step_s = st.sampled_from([0.001, 0.01, 0.1, 1.0, 20.0])
changing = st.lists(any_step_s, min_size=1, max_size=8).map(lambda found: [step_s for step_s in found for _ in range(40)])


@simulated
@given(worlds, changing, st.integers(1, 30))
def test_a_number_of_steps_means_just_these_steps_on_every_rank(drifts, step_s, every):
    assert Ranks(every, step_s, drifts).cuts == list(range(every, len(step_s) + 1, every))


@simulated
@given(worlds, changing, st.sampled_from([0.25, 3.0, 60.0]))
def test_a_time_means_never_before_and_soon_after_whatever_the_clocks_say(drifts, step_s, every_s):
    ranks = Ranks(f"{every_s}s", step_s, drifts)
    for begin, end in pairwise(sorted({0, *ranks.cuts, len(step_s)})):
        passed_s = [at_s - ranks.at_s[begin] for at_s in ranks.at_s]
        due = next((step for step, passed in enumerate(passed_s) if passed * min(drifts) >= every_s), end)
        assert end <= due + MOST_STEPS
        if end in ranks.cuts:
            assert passed_s[end] * max(drifts) >= every_s - 1e-6


def test_the_ranks_exchange_about_twice_a_second_and_not_at_every_step():
    assert Ranks("600s", [0.01] * 2000, (1.0, 1.0)).num_exchanges <= 2 * 20 + 2
    assert Ranks(1000, [0.0001] * 2000, (1.0, 1.0)).num_exchanges <= 2000 / MOST_STEPS + 4


@pytest.mark.long
@simulated
@given(worlds, changing, st.integers(1, 30), st.data())
def test_one_that_is_due_while_one_is_written_is_cut_once_it_can_be(drifts, step_s, every, data):
    writes = [data.draw(st.integers(1, 100)) for _ in drifts]
    expected = [every]
    while (due := (expected[-1] // every + 1) * every) <= len(step_s):
        expected.append(max(due, expected[-1] + max(writes)))
    assert Ranks(every, step_s, drifts, writes).cuts == [cut for cut in expected if cut <= len(step_s)]


@pytest.mark.parametrize("drifts", [(1.0,), (1.0, 1.0)])
def test_what_one_rank_could_not_write_all_hear_of(drifts):
    last = len(drifts) - 1
    ranks = Ranks(200, [0.1] * 800, drifts, goes_well=lambda rank, step: rank != last or step != 400)
    assert ranks.cuts == [200, 400, 600, 800]
    assert len(ranks.failures) == 1


@simulated
@given(worlds, changing, st.sampled_from(["off", 7, "3s"]), st.data())
def test_when_one_rank_is_asked_to_stop_all_do_after_the_same_step(drifts, step_s, every, data):
    steps = st.integers(1, len(step_s))
    asked = data.draw(st.dictionaries(st.integers(0, len(drifts) - 1), steps, min_size=1))
    writes = [data.draw(st.integers(1, 100)) for _ in drifts]
    stop = Ranks(every, step_s, drifts, writes, asked=asked).stop
    first = min(asked.values())
    if stop is None:
        assert first + MOST_STEPS > len(step_s)
    else:
        assert first <= stop[0] <= first + (MOST_STEPS if len(drifts) > 1 else 0)
        assert stop[1] == min(rank for rank, step in asked.items() if step <= stop[0])


@simulated
@given(worlds, any_step_s, st.integers(10, 200))
def test_with_steady_steps_they_do_within_half_a_second(drifts, step_s, step):
    ranks = Ranks("off", [step_s] * 400, drifts, asked={len(drifts) - 1: step})
    assert ranks.at_s[ranks.stop[0]] - ranks.at_s[step] <= 0.5 / min(drifts) + 2 * step_s


def alone_among_many(every):
    """The schedule of a rank whose peers have no news, and whose steps take no time; and
    what it decides after a step."""
    schedule = CheckpointSchedule(every, is_alone=False, clock=lambda: 0.0)
    return (
        schedule,
        lambda step, **state: (
            schedule.settle(step, schedule.propose(step, **state)) if schedule.is_due(step) else (False, False)
        ),
    )


def test_one_that_is_late_is_saved_in_the_very_next_step_in_which_it_can_be():
    _, decide = alone_among_many(10)
    seen = [decide(step, is_busy=step in (10, 11))[0] for step in range(1, 14)]
    assert [step for step, is_saved in enumerate(seen, 1) if is_saved] == [12]


def test_a_failure_is_told_also_if_a_later_write_went_well():
    schedule, decide = alone_among_many(10)
    schedule.written(well=False)
    schedule.written(well=True)
    assert decide(10, is_busy=False) == (True, True)
    assert decide(20, is_busy=False) == (True, False)
