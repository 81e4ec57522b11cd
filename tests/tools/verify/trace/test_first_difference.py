"""Promises of comparing traces: the first difference in causal order is found, and what one run
does wrong by itself."""

import copy

import pytest
from codes import raises
from made_traces import shard_line, step_line, trace

from lockstep._base.errors import UsageError
from lockstep._tools.verify.trace.differences import first_difference, first_fault, learned, uses_each_sample_once
from lockstep._tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(20)


def changed(change, world_size=2):
    """A run of two ranks, with what ``change`` made of each line."""
    ranks = copy.deepcopy(trace(world_size))
    for rank, lines in enumerate(ranks):
        for line in lines:
            change(rank, line)
    return gather(ranks)


def in_step(number, event, function):
    return lambda rank, line: function(line) if line["event"] == event and line["step"] == number else None


def in_shard(step, shard, function):
    return in_step(step, "shard", lambda line: function(line) if line["shard"] == shard else None)


def test_a_second_phase_of_a_step_uses_its_samples_again_without_a_fault():
    """As a GAN's, whose two models are trained on one batch."""
    ranks = trace(2)
    for lines in ranks:
        lines[:] = [
            each for line in lines for each in ([line, {**line, "phase": 1}] if line["event"] == "shard" else [line])
        ]
    run = gather(ranks)
    assert first_fault(run) is None
    assert uses_each_sample_once(run)


def test_what_differs_in_a_second_phase_comes_before_its_update():
    one, two = copy.deepcopy(trace(1)), copy.deepcopy(trace(1))
    for lines in (one[0], two[0]):
        for line in lines:
            if line["event"] == "step":
                line["gradients"], line["norms"] = 2 * line["gradients"], 2 * line["norms"]
    for line in two[0]:
        if line["event"] == "step" and line["step"] == 2:
            line["gradients"] = [line["gradients"][0], {**line["gradients"][1], "w": "another"}]
            line["weights"]["w"] = line["state"]["lr of group 0"] = "=another"
    found = first_difference(gather(one), gather(two))
    assert (found.step, found.phase, found.stage) == (2, 1, "gradient")


def test_any_number_of_ranks_with_the_same_shards_is_the_same():
    one, two = gather(trace(1)), gather(trace(2))
    assert first_fault(one) is first_fault(two) is first_difference(one, two) is None
    assert (one.samples_by_rank, two.samples_by_rank) == ((8,), (4, 4))
    assert uses_each_sample_once(two)
    assert learned(two)


CHANGES = {
    "samples": in_shard(2, 1, lambda line: line["batches"][0].update(samples=[9, 7])),
    "content": in_shard(2, 1, lambda line: line["batches"][0].update(content="another")),
    "loss": in_shard(2, 1, lambda line: line.update(losses=[(0.75).hex()])),
    "weight of a loss": in_shard(2, 1, lambda line: line.update(weights=[(3.0).hex()])),
    "gradient of a shard": in_shard(2, 1, lambda line: line.update(gradients={"w": "another"})),
    "gradient": in_step(2, "step", lambda line: line["gradients"][0].update(b="another")),
    "weights": in_step(2, "step", lambda line: line["weights"].update(b="another")),
    "buffers": in_step(2, "step", lambda line: line["buffers"].update(mean="another")),
    "number": in_step(2, "step", lambda line: line["state"].update({"lr of group 0": "=0.2"})),
    "state": in_step(2, "step", lambda line: line["state"].update({"momentum of w": "another"})),
    "evaluation": in_step(2, "evaluation", lambda line: line["values"].update(loss=(0.5).hex())),
}
NAMES = {
    "gradient of a shard": "w",
    "gradient": "b",
    "number": "lr of group 0",
    "weights": "b",
    "buffers": "mean",
    "state": "momentum of w",
}


@pytest.mark.parametrize("stage", CHANGES)
def test_a_difference_is_found_with_its_step_shard_and_name(stage):
    found = first_difference(gather(trace(1)), changed(CHANGES[stage]))
    assert (found.step, found.stage) == (2, stage)
    if stage in list(CHANGES)[:5]:
        assert found.shard == 1
        assert found.samples == (6, 7)
    assert found.name == NAMES.get(stage, "loss" if stage == "evaluation" else None)
    assert found.values[0] != found.values[1]
    assert first_difference(gather(trace(1)), changed(CHANGES[stage]), until=1) is None


def test_of_several_differences_the_cause_comes_before_its_consequence():
    def everything(rank, line):
        for change in CHANGES.values():
            change(rank, line)

    assert first_difference(gather(trace(1)), changed(everything)).stage == "samples"

    def later(rank, line):
        for name in list(CHANGES)[2:]:
            CHANGES[name](rank, line)

    assert first_difference(gather(trace(1)), changed(later)).stage == "loss"


def test_what_a_script_does_after_its_last_step_is_compared():
    def load(rank, line):
        if line["event"] == "end":
            line["weights"].update(w="of the best epoch")

    found = first_difference(gather(trace(1)), changed(load))
    assert (found.step, found.is_behind, found.stage, found.name) == (2, True, "weights", "w")
    assert first_difference(gather(trace(1)), changed(load), until=2) is None
    earlier = first_difference(gather(trace(1)), changed(lambda *line: (load(*line), CHANGES["state"](*line))))
    assert not earlier.is_behind
    assert earlier.order < found.order


def resumed(change=lambda line: None):
    """A run that went on after its first step, with what ``change`` made of each line."""
    lines = []
    for line in trace(1)[0]:
        if line["event"] == "initial":
            line = {**step_line(1), "event": "initial"}
            del line["step"]
        if line.get("step") != 1:
            change(line)
            lines.append(line)
    return gather([lines])


def test_a_run_that_goes_on_is_compared_from_where_it_began():
    one = gather(trace(1))
    assert first_difference(one, resumed()) is None
    assert first_fault(resumed()) is None
    found = first_difference(one, resumed(lambda line: CHANGES["loss"](0, line)))
    assert (found.step, found.stage) == (2, "loss")


def test_what_a_resume_has_lost_is_found_before_its_first_step():
    def lose(line):
        if line["event"] == "initial":
            line["state"] = {**line["state"], "momentum of w": "zero"}

    found = first_difference(gather(trace(1)), resumed(lose))
    assert (found.step, found.stage, found.name) == (1, "state", "momentum of w")


def test_what_a_rank_that_was_ended_has_not_written_is_behind_the_last_step_of_all():
    whole = trace(2, num_steps=3)
    last = gather(whole).last_of_all
    rank_0 = [line for line in whole[0] if line.get("step", 0) < 3]
    for left in ([rank_0, whole[1]], [whole[1], rank_0]):
        ranks = [
            [{**line, "rank": n} if line["event"] == "start" else line for line in lines] for n, lines in enumerate(left)
        ]
        run = gather(ranks)
        assert (last, run.last_of_all) == (3, 2)
        assert first_difference(gather(trace(1, num_steps=3)), run, until=run.last_of_all) is None
    assert gather([rank_0, [line for line in whole[1] if line["event"] != "step"]]).last_of_all == 0


def test_a_trace_is_complete_if_every_rank_has_reached_its_end():
    for left_out in range(3):
        ranks = [lines[: len(lines) - (rank == left_out)] for rank, lines in enumerate(trace(2))]
        assert gather(ranks).is_complete == (left_out == 2)
    assert not gather(trace(2)[:1]).is_complete


def test_weights_that_differ_before_the_first_step_are_found():
    def begin(rank, line):
        if line["event"] == "initial":
            line["weights"]["w"] = "another"

    found = first_difference(gather(trace(1)), changed(begin))
    assert (found.step, found.stage, found.name) == (0, "weights", "w")


def test_another_number_of_steps_is_a_difference():
    found = first_difference(gather(trace(1)), gather(trace(2, num_steps=3)))
    assert (found.step, found.stage, found.values) == (3, "steps", ("2 steps", "3 steps"))


def test_ranks_that_do_not_agree_are_found_without_another_run():
    def second_rank(rank, line):
        if rank == 1:
            CHANGES["weights"](rank, line)

    found = first_fault(changed(second_rank))
    assert (found.step, found.stage, found.name, found.among) == (2, "ranks", "b", ("rank 0", "rank 1"))


def test_a_shard_that_two_ranks_ran_is_found():
    ranks = trace(2)
    ranks[1].insert(3, shard_line(1, 0, [0, 1]))
    found = first_fault(gather(ranks))
    assert (found.step, found.stage, found.shard) == (1, "samples", 0)
    assert found.owners == (0, 1)


def test_a_sample_used_twice_is_found_unless_the_sampler_draws_with_replacement():
    def twice(rank, line):
        in_shard(2, 1, lambda line: line["batches"][0].update(samples=[6, 0]))(rank, line)

    found = first_fault(changed(twice))
    assert (found.step, found.shard, found.samples) == (2, 1, (0,))
    for replacement in (True, None):  # None: a sampler of the script
        ranks = trace(2, replacement=replacement)
        ranks[1][-4]["batches"][0]["samples"] = [6, 0]
        assert first_fault(gather(ranks)) is None


def test_a_sample_that_one_shard_uses_twice_is_found_as_well():
    run = changed(in_shard(2, 1, lambda line: line["batches"][0].update(samples=[6, 6])))
    found = first_fault(run)
    assert (found.step, found.shard, found.samples, uses_each_sample_once(run)) == (2, 1, (6,), False)
    assert uses_each_sample_once(gather(trace(2)))


def begin_with(values):
    """A change of the trace: an evaluation before the first step."""

    def evaluate(lines):
        lines.insert(3, {"event": "evaluation", "epoch": 0, "step": 0, "values": values})

    return evaluate


def evaluated_last(change):
    return lambda lines: change(lines, max(place for place, line in enumerate(lines) if line["event"] == "evaluation"))


EVALUATIONS = {
    "before the first step": (begin_with({"loss": (1.0).hex()}), begin_with({"loss": (2.0).hex()}), (0, "loss")),
    "before the first step of one": (begin_with({"loss": (1.0).hex()}), lambda lines: None, (0, None)),
    "one value more": (lambda lines: None, evaluated_last(lambda all, at: all[at]["values"].update(f1="0x0p+0")), (2, "f1")),
    "one value fewer": (lambda lines: None, evaluated_last(lambda all, at: all[at]["values"].clear()), (2, "loss")),
    "none after the last step": (lambda lines: None, evaluated_last(lambda all, at: all.pop(at)), (2, None)),
    "one more after the last step": (lambda lines: None, evaluated_last(lambda all, at: all.insert(at, all[at])), (2, None)),
}


@pytest.mark.parametrize("case", EVALUATIONS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_evaluations_are_compared_all_of_them_and_all_their_values(case, is_turned):
    """Also those before and after all steps."""
    *changes, expected = EVALUATIONS[case]
    one, two = copy.deepcopy(trace(1)), copy.deepcopy(trace(1))
    for change, ranks in zip(changes[::-1] if is_turned else changes, (one, two), strict=True):
        change(ranks[0])
    found = first_difference(gather(one), gather(two))
    assert (found.stage, found.step, found.name) == ("evaluation", *expected)
    assert found.values[0] != found.values[1]
    if "after the last step" in case:  # a run that is only known up to there had no time for it
        assert found.is_behind
        assert first_difference(gather(one), gather(two), until=2) is None


@pytest.mark.parametrize("failed", [0, 1])
def test_of_ranks_that_end_in_different_steps_those_that_differ_have_their_own_numbers(failed):
    """As after an error of one rank's code in a step that the others finish."""
    ranks = trace(3, num_shards=3, replacement=True)
    ranks[failed] = [line for line in ranks[failed] if line.get("step") != 2 and line["event"] != "end"]
    for line in ranks[2]:
        CHANGES["weights"](2, line)
    found = first_fault(gather(ranks))
    assert (found.step, found.name, found.among) == (2, "b", (f"rank {1 - failed}", "rank 2"))


def test_weights_that_never_moved_are_nothing_learned():
    def keep(rank, line):
        if line["event"] == "step":
            line["weights"] = {"w": "weight 0", "b": "bias 0"}

    assert not learned(changed(keep))


def test_a_run_that_was_resumed_may_leave_its_weights_as_they_are():
    """As an epoch at the end does that only updates the statistics of BatchNorm."""
    assert learned(resumed(lambda line: line.update(weights=step_line(1)["weights"]) if "weights" in line else None))


def test_a_script_that_took_no_step_is_told_what_it_lacks():
    with raises(UsageError, "verify-no-step"):
        gather([[line for line in trace(1)[0] if line["event"] in ("start", "end")]])
