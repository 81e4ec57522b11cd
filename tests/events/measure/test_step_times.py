"""Each second of a pass is in one part, and each rank's work in one row: drawn steps of any times,
by a clock that is moved by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lockstep._events.measure import step_clock
from lockstep._events.measure.split import PARTS
from lockstep._events.measure.step_clock import BEGINNING, ENDING, IN_BACKWARD, IN_FORWARD, LOADING, StepClock
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step

pytestmark = pytest.mark.timeout(60)
seconds = st.integers(0, 9).map(float)  # sums of whole numbers are exact
ACTIVITIES = ("data", "script", "copy", "forward", "backward", "exchange", "optimizer", "logging")
steps = st.fixed_dictionaries(
    {**dict.fromkeys(ACTIVITIES, seconds), "excess": st.integers(-9, 9).map(float), "is_dropped": st.booleans()}
)


PLAN = plan_step(1, (8,), 0, even_blocks(1, 1))


class Run:
    """A rank of two that takes the steps, and what it should find."""

    def __init__(self, now):
        self.now = now
        self.saving = SimpleNamespace(pause_s=0.0)
        self.clock = StepClock(self.saving, torch.device("cpu"))
        self.parts, self.rows, self.told = dict.fromkeys(PARTS, 0.0), [], []
        self.clock.tell = lambda rows, busy: self.told.append(busy)
        self.clock.begin_pass(0, 1, None, 0)

    def spend(self, part, seconds):
        self.now[0] += seconds
        self.parts[part] += seconds

    def take(self, number, step):
        clock, began_s = self.clock, self.now[0]
        self.spend("data", step["data"])
        clock.begin_step(number)
        self.spend("script", step["script"])
        for activity, part in ((BEGINNING, "copy"), (IN_FORWARD, "forward"), (IN_BACKWARD, "backward")):
            clock.mark((activity, self.now[0]))
            self.spend(part, step[part])
        clock.mark((ENDING, self.now[0]))
        if step["is_dropped"]:
            clock.abandon_step()
            clock.mark((LOADING, self.now[0]))
            return None
        row = clock.report(PLAN)
        other = max(0.0, row[-1] + step["excess"])
        clock.receive([row, [8.0, 0.0, 0.0, 0.0, other, other]])
        waited = min(step["exchange"], max(0.0, other - row[-1]))
        self.spend("communication", step["exchange"] - waited)
        self.spend("waiting", waited)
        clock.end_phase(0)
        self.rows.append((row, [row[-1], other]))
        clock.before_optimizer()
        self.spend("optimizer", step["optimizer"])
        clock.after_optimizer()
        clock.end_step(number, 16)
        took = self.now[0] - began_s
        self.spend("logging", step["logging"])
        clock.mark((LOADING, self.now[0]))
        return took


@settings(deadline=None, max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(steps, min_size=1, max_size=10))
def test_parts_add_up_to_the_pass_and_rows_have_what_a_rank_did_since_the_last_exchange(drawn):
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_clock, "perf_counter", lambda: now[0])
        run, took, expected = Run(now), [], []
        since = dict.fromkeys(("data", "forward", "backward", "script"), 0.0)
        logged = carried = 0.0
        for number, step in enumerate(drawn):
            since["data"] += step["data"]
            since["forward"] += step["copy"] + step["forward"]
            since["backward"] += step["backward"]
            since["script"] += step["script"]
            one = run.take(number, step)
            if one is None:
                since = dict.fromkeys(since, 0.0)
                carried += sum(step[name] for name in ("data", "script", "copy", "forward", "backward"))
                continue
            expected.append([8.0, *since.values(), math.fsum(since.values())])
            since = {**dict.fromkeys(since, 0.0), "script": step["optimizer"]}
            took.append(one + logged + carried)
            logged, carried = step["logging"], 0.0
        assert run.clock.take() == run.parts
        assert [row for row, _ in run.rows] == expected
        assert run.told == [busy for _, busy in run.rows]
        assert run.clock.step_s == pytest.approx(math.fsum(took) / len(took) if took else 0.0)


def test_the_marks_of_a_process_alone_are_counted_every_few_steps_and_its_times_are_those_of_every_step(monkeypatch):
    now, most = [0.0], 0
    monkeypatch.setattr(step_clock, "perf_counter", lambda: now[0])
    run = Run(now)
    clock = run.clock
    for number in range(1, 50):
        run.spend("data", 1.0 + number % 3)
        clock.begin_step(number)
        run.spend("script", 2.0)
        for activity, part in ((BEGINNING, "copy"), (IN_FORWARD, "forward"), (IN_BACKWARD, "backward")):
            clock.mark((activity, now[0]))
            run.spend(part, float(number % 5))
        clock.mark((ENDING, now[0]))
        run.spend("backward", 1.0)  # nothing is exchanged: gradients are added up
        clock.end_phase(0)
        clock.end_step(number, 8)
        run.spend("logging", 1.0)
        clock.mark((LOADING, now[0]))
        assert clock.so_far == run.parts
        assert clock.doing == LOADING
        most = max(most, len(clock._marks))
    assert abs(most - step_clock._MANY) < 10  # a step has 8
    assert clock.take() == run.parts


@settings(deadline=None, max_examples=15, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.tuples(seconds, seconds, seconds), max_size=4), seconds, seconds)
def test_pauses_for_checkpoints_before_steps_and_between_passes_count_as_such_once(drawn, between, outside):
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_clock, "perf_counter", lambda: now[0])
        run = Run(now)
        for _ in range(2):
            run.clock.begin_pass(0, 2, None, 0)
            run.parts = dict.fromkeys(PARTS, 0.0)
            for number, (data, pause, script) in enumerate(drawn):
                run.spend("data", data)
                run.spend("checkpoint", pause)
                run.saving.pause_s += pause
                run.clock.begin_step(number)
                run.spend("script", script)
                run.clock.end_step(number, 1)
                run.clock.mark((LOADING, now[0]))
            assert run.clock.take() == run.parts
            run.clock.end_pass(0, exhausted=True)
            run.saving.pause_s += between
            now[0] += between + outside
