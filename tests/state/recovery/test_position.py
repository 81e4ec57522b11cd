"""Promises of resuming: wherever a script was interrupted, running it again makes just the steps
that were left."""

import dataclasses
import json

import pytest
from codes import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep._base.errors import UsageError
from lockstep._state.recovery.position import Resumption, ScriptPosition

pytestmark = pytest.mark.timeout(60)


@dataclasses.dataclass
class Cut:
    """A checkpoint of a simulated run."""

    position: ScriptPosition
    steps: list
    """All that were taken before."""
    skip: int
    """Those of them that belong to the pass at hand."""


class Launch:
    """Runs a script as a team does: reports to the resumption in the order in which ``Loop`` and
    ``PreparedLoader`` do.

    A cut is taken wherever one may be.
    """

    def __init__(self, script, cut=None, **options):
        target = None if cut is None else ScriptPosition.from_json(json.loads(json.dumps(cut.position.as_json())))
        self.script, self.saved = Resumption(self._restore, target, **options), cut
        self.steps, self.cuts, self.num_resumed = [], [], 0
        self._skip, self._running = 0, False
        for number, part in enumerate(script):
            part(self, number)
        self._cut(self.script.end())

    def _cut(self, position, skip=0):
        if self.script.target is None:
            self.cuts.append(Cut(position, list(self.steps), skip))

    def _restore(self, is_final):
        self.steps, self._skip = list(self.saved.steps), self.saved.skip
        self.num_resumed += is_final

    def epochs(self, num_epochs):
        first = self.script.enter_epochs(num_epochs)
        completed = False
        try:
            for epoch in range(first, num_epochs):
                self.script.begin_epoch(epoch)
                yield epoch
                if not self._running:
                    self._cut(self.script.after_epoch(epoch))
            completed = True
        finally:
            self.script.leave_epochs(max(first, num_epochs) if completed else None)

    def one_pass(self, length):
        """The steps of a pass over a training loader, by number."""
        if self.script.skips():
            return
        self.script.begin_pass()
        done, self._skip = self._skip, 0
        self._running, exhausted = True, False
        try:
            for number in range(done, length):
                self._cut(self.script.here(), number)
                yield number
            exhausted = True
        finally:
            self._running = False
            self.script.end_pass()
            if exhausted and not self.script.is_in_epochs:
                self._cut(self.script.here())


def train(launch, passes, name):
    """Loops over a loader, one after the other: each to its end, or left after some steps."""
    for length, most in passes:
        for number in launch.one_pass(length):
            launch.steps.append((*name, number))
            if most is not None and number + 1 >= most:
                break


def bare(passes):
    """Loops over a loader, outside of ``team.epochs``."""
    return lambda launch, number: train(launch, passes, (number,))


def in_epochs(num_epochs, passes, last):
    """A loop over ``team.epochs`` with loops over a loader in it; left in the epoch ``last``."""

    def run(launch, number):
        for epoch in launch.epochs(num_epochs):
            train(launch, passes, (number, epoch))
            if epoch == last:
                break

    return run


def across_epochs(num_epochs, per_epoch, length):
    """The same with an iterator that goes on from one epoch to the next, each of which ends after a
    certain step."""

    def run(launch, number):
        steps = (_ for _ in ())
        for epoch in launch.epochs(num_epochs):
            while sum(name[0] == number for name in launch.steps) < (epoch + 1) * per_epoch:
                step = next(steps, None)
                while step is None:
                    steps = launch.one_pass(length)
                    step = next(steps, None)
                launch.steps.append((number, epoch, step))
        steps.close()

    return run


few = st.integers(0, 3)
passes = st.lists(st.tuples(few, st.none() | st.integers(1, 3)), max_size=3)
parts = st.one_of(
    st.builds(bare, passes),
    st.builds(in_epochs, few, passes, st.none() | few),
    st.builds(across_epochs, few, st.integers(1, 4), st.integers(1, 3)),
)
scripts = st.lists(parts, max_size=4)


@pytest.mark.long
@settings(deadline=None, max_examples=80)
@given(scripts)
def test_from_every_place_and_again_from_there_just_the_steps_left_are_made(script):
    undisturbed = Launch(script)
    for cut in undisturbed.cuts:
        again = Launch(script, cut)
        if again.script.target is not None:  # nothing was trained, and nothing is
            assert not undisturbed.steps
            continue
        assert again.num_resumed == 1
        assert again.steps == undisturbed.steps
        for second in again.cuts:
            third = Launch(script, second)
            assert (third.num_resumed, third.steps) == (1, undisturbed.steps)


@settings(deadline=None)
@given(scripts, parts, st.integers(0, 3), passes, st.integers(0, 3), st.floats(0, 1))
@example([in_epochs(1, [(1, None)], None), bare([(2, None)])], bare([]), 0, [], 0, 1.0)
def test_a_script_that_had_come_to_its_end_goes_on_with_what_was_added_to_it(
    script, more, num_epochs, loops, num_more, interrupted
):
    """Also if it had come there from some place where it was interrupted."""
    for before, later in (
        (script, [*script, more]),
        ([*script, in_epochs(num_epochs, loops, None)], [*script, in_epochs(num_epochs + num_more, loops, None)]),
    ):
        cuts, steps = Launch(before).cuts, Launch(later).steps
        assert Launch(later, cuts[-1]).steps == steps
        resumed = Launch(before, cuts[int(interrupted * (len(cuts) - 1))])
        assert resumed.script.target is not None or Launch(later, resumed.cuts[-1]).steps == steps


@pytest.mark.parametrize("script", [[in_epochs(1, [(3, None)], None)], [bare([(3, None)]), in_epochs(1, [(3, None)], None)]])
def test_a_script_that_has_no_such_place_any_more_is_told_what_was_looked_for(script):
    cut = Launch([bare([(3, None)] * 2)]).cuts[5]
    assert cut.position == ScriptPosition(passes=1, in_pass=True)
    with raises(UsageError, "position-passed") as refused:
        Launch(script, cut)
    assert "pass 2" in str(refused.value)
    assert "epoch 1" in str(refused.value)


def test_an_interrupted_loop_over_epochs_may_have_more_of_them_and_fewer_only_if_that_is_allowed():
    def script(num_epochs):
        return [bare([(1, None)]), in_epochs(num_epochs, [(2, None)], None)]

    cuts = [cut for cut in Launch(script(5)).cuts if cut.position.section == 1 and cut.position.epoch < 5]
    assert cuts
    for cut in cuts:
        assert Launch(script(7), cut).steps == Launch(script(7)).steps
        for fewer in range(5):
            with raises(UsageError, "fewer-epochs"):
                Launch(script(fewer), cut)
            if fewer >= cut.position.epoch + cut.position.in_pass:
                assert Launch(script(fewer), cut, may_shorten=True).steps == Launch(script(fewer)).steps
            else:
                with raises(UsageError, "fewer-epochs"):
                    Launch(script(fewer), cut, may_shorten=True)


def test_a_loop_over_epochs_that_was_left_may_have_fewer():
    cut = Launch([in_epochs(5, [(2, None)], 1)]).cuts[-1]
    again = Launch([in_epochs(3, [(2, None)], 1)], cut)
    assert (again.num_resumed, len(again.steps)) == (1, 4)


def test_fewer_epochs_than_were_run_end_at_once_with_the_state_of_then():
    cut = Launch([in_epochs(5, [(2, None)], None)]).cuts[-1]
    again = Launch([in_epochs(3, [(2, None)], None)], cut)
    assert (again.num_resumed, len(again.steps)) == (1, 10)
