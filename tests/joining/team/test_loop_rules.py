"""The loop's rules: what a step, its shards and its phases are, what belongs into them, and what
does not."""

import ast
import re
from pathlib import Path

import pytest
import team_scripts

import lockstep

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (2, 4)])
def test_an_iteration_is_a_step_on_every_process_which_have_its_shards(standing_crew, nproc, shards):
    for rank, seen in enumerate(standing_crew(nproc, team_scripts.watch_steps, 24, 8, 2, shards=shards)):
        assert seen["before"] == (0, 0)
        assert seen["len"] == 3
        assert seen["after"] == 6
        assert seen["between"] == [3, 6]
        expected = []
        for step in range(1, 7):
            epoch, size, own = (step - 1) // 3, 8 // shards, shards // nproc
            firsts = [8 * ((step - 1) % 3) + size * (rank * own + index) for index in range(own)]
            inputs = [(epoch, step, [float(n) for n in range(first, first + size)]) for first in firsts]
            expected.append((epoch, epoch, step, 8, inputs))
        assert seen["steps"] == expected


def test_a_process_without_samples_takes_every_step_too(standing_crew):
    by_rank = standing_crew(3, team_scripts.watch_steps, 9, 4, 2, shards=3)
    for seen in by_rank:
        assert [number for *_, number, _ in seen["steps"]] == [4, 4, 1] * 2
        assert [step for _, _, step, *_ in seen["steps"]] == [1, 2, 3, 4, 5, 6]
        assert seen["between"] == [3, 6]
    assert [[len(shards) for *_, shards in seen["steps"]] for seen in by_rank] == [[1] * 6, [1, 1, 0] * 2, [1, 1, 0] * 2]


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 3), (True, 2)])
def test_a_loaders_length_counts_global_steps(standing_crew, drop_last, steps):
    for seen in standing_crew(2, team_scripts.watch_steps, 19, 8, 1, drop_last, shards=4):
        assert (seen["len"], seen["after"]) == (steps, steps)


@pytest.mark.parametrize(("nproc", "shards"), [(1, 2), (2, 4)])
@pytest.mark.parametrize("zero_at", ["first", "last", "model", "between", "never"])
def test_the_gradient_of_a_phase_is_added_behind_its_shards_to_what_was_there(standing_crew, nproc, shards, zero_at):
    # by default one shard alone is a plain script's
    settings = {"shards": shards, "strategy": "exact"}
    for inside, behind, weights in standing_crew(nproc, team_scripts.gradients_of_phases, zero_at, **settings):
        assert set(inside) == {None}
        if zero_at == "between":
            assert behind == pytest.approx([1.5, 1.5, 5.5, 5.5])
        elif zero_at == "never":
            assert behind == pytest.approx([1.5, 3.0, 8.5, 14.0])
            assert weights == pytest.approx([1 - 0.3, 1 - 0.3 - 1.4])
        else:
            assert behind == pytest.approx([1.5, 3.0, 5.5, 11.0])
            assert weights == pytest.approx([1 - 0.3, 1 - 0.3 - 1.1])


@pytest.mark.parametrize(
    ("name", "made"), [("one cycle", "before"), ("one cycle", "after"), ("sequential", "before"), ("step", "after")]
)
def test_a_schedule_in_the_loop_counts_global_steps_whenever_it_was_made(standing_crew, name, made):
    plain = standing_crew(1, team_scripts.plain_rates, name)[0]
    assert len(set(plain)) > 1
    for rates in standing_crew(2, team_scripts.rates_by_step, name, made, shards=4):
        assert rates == plain


def test_a_schedule_outside_of_the_loop_counts_every_call(standing_crew):
    for rates in standing_crew(2, team_scripts.rates_by_epoch, shards=4):
        assert [pytest.approx(pair) for pair in rates] == [[1.0, 1.0], [0.5, 1.0], [0.25, 0.1]]


def test_state_dicts_are_those_of_plain_objects(standing_crew):
    assert standing_crew(2, team_scripts.plain_states, shards=4) == [(True, True, 2)] * 2


@pytest.mark.parametrize("strategy", ["exact", "ddp", "fsdp"])
def test_every_rank_begins_with_the_weights_and_buffers_of_rank_0(standing_crew, strategy):
    first, second = standing_crew(2, team_scripts.made_of_own_numbers, strategy=strategy, shards=2)
    # AveragedModel counts its updates in a buffer that it makes itself
    assert {*first} == {*second} == {7.0, 0.0}


@pytest.mark.parametrize("left_at", range(4))
def test_each_loop_over_the_same_epochs_goes_through_those_that_are_left(standing_crew, left_at):
    first, then = list(range(left_at + 1)), list(range(left_at + 1, 4))
    assert standing_crew(1, team_scripts.epochs_again, left_at) == [[first, then, []]]


@pytest.mark.parametrize("length", [16, 9])
def test_any_answers_at_once_on_every_rank_with_samples_or_without(standing_crew, length):
    for answers, one, none in standing_crew(2, team_scripts.any_in_every_step, length, {(1, 2)}, shards=4):
        assert answers == [(1, False, False, False), (2, True, True, False)]
        assert (one, none) == (True, False)


def test_ranks_that_ask_any_leave_the_loop_together(standing_crew):
    assert standing_crew(2, team_scripts.stop_together, shards=4) == [3] * 2


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_step_that_is_left_counts_if_a_phase_of_it_was_completed(standing_crew, nproc):
    for found in standing_crew(nproc, team_scripts.leave, "before the shards", shards=2):
        assert found == [(1, 1.0), (2, 2.0), (3, 3.0)]
    for found in standing_crew(nproc, team_scripts.leave, "before the update", shards=2):
        assert found == [(2, 1.0), (4, 2.0), (6, 3.0)]
    for found in standing_crew(nproc, team_scripts.leave, "after the update", shards=2):
        assert found == [(2, 2.0), (4, 4.0), (6, 6.0)]


def test_averages_of_a_pass_are_the_weighted_means_over_its_shards_on_any_number_of_processes(standing_crew):
    told = []
    for nproc in (1, 3):
        by_rank = standing_crew(nproc, team_scripts.average_values, 13, 6, shards=4)
        told += [averages for _, averages in by_rank]
        added = [row for rows, _ in by_rank for row in rows]
        for epoch in range(2):
            weights, values = zip(*(pair for at, *pair in added if at == epoch), strict=True)
            mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)
            assert told[-1][epoch] == {"loss": pytest.approx(mean, rel=1e-14)}, "sums are in no average"
    assert all(averages == told[0] for averages in told)


@pytest.mark.parametrize("nproc", [2, 3])
def test_names_of_values_that_are_used_no_more_take_no_room(standing_crew, nproc):
    num_steps = 130
    [(expected, _)] = standing_crew(1, team_scripts.names_by_step, num_steps, shards=4)
    by_rank = standing_crew(nproc, team_scripts.names_by_step, num_steps, shards=4)
    lengths = by_rank[0][1]
    for values, its_lengths in by_rank:
        assert values == expected
        assert its_lengths == lengths, "ranks have rows of different lengths"
    assert len(lengths) == num_steps
    assert max(lengths[80:]) <= lengths[60] + 2 * 2 * 2, "more than the one name that comes seldom"


GUARDS = {"check_outside", "_check_outside", "_guard", "before_collective", "before_evaluation"}
"""The functions that refuse a call, named by their first argument, inside of the shards."""
END_THE_LOOP = {"the next step", "the end of the pass"}
"""These are tested by shards that are left early."""


def guarded_calls():
    """What the package refuses inside of the shards of a training batch, as patterns of names."""
    patterns = set()
    for file in Path(lockstep.__file__).parent.rglob("*.py"):
        if file.name == "evaluation_pass.py":  # of shards of an evaluation
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function in GUARDS and node.args:
                patterns |= {pattern_of(node.args[0])} - {None}
            elif function == "refuse_inside" and len(node.args) == 3:
                patterns |= {rf".*\.{name}\(\)" for name in ast.literal_eval(node.args[1])}
    return patterns - {re.escape(name) for name in END_THE_LOOP}


def pattern_of(name):
    """None: the name is not in the source."""
    match name:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in parts)


@pytest.mark.parametrize("nproc", [1, 2])
def test_what_belongs_outside_of_the_shards_is_refused_inside_and_changes_nothing(standing_crew, nproc):
    for said, after in standing_crew(nproc, team_scripts.refused_in_the_shards, shards=4):
        assert [call for call, refusal in said.items() if refusal is None] == []
        assert {(kind, code) for kind, code, _ in said.values()} == {("UsageError", "inside-shards")}
        names = [message.partition(" inside batch.shards")[0] for *_, message in said.values()]
        guarded = guarded_calls()
        assert len(guarded) > 25
        untested = [pattern for pattern in guarded if not any(re.fullmatch(pattern, name) for name in names)]
        assert untested == []  # else the script is to make these calls, too
        assert after == (pytest.approx(1 - 0.15 - 0.055 - 0.0095), 3, 3, 3)


@pytest.mark.parametrize("nproc", [1, 2])
def test_another_loader_is_not_asked_for_a_batch_in_the_shards_in_any_of_its_passes(standing_crew, nproc):
    for refusals in standing_crew(nproc, team_scripts.another_loader_in_the_shards, shards=4):
        assert [(kind, code) for kind, code, _ in refusals] == [("UsageError", "inside-shards")] * 2


@pytest.mark.parametrize(("strategy", "nproc"), [("single", 1), ("exact", 2), ("ddp", 2)])
def test_a_collective_in_the_shards_of_an_evaluation_is_refused_before_a_rank_waits_for_those_with_fewer(
    standing_crew, strategy, nproc
):
    settings = {"shards": nproc, "strategy": strategy, "timeout_s": 20.0}
    scripts = standing_crew(nproc, team_scripts.collective_in_an_evaluation, 3, **settings)
    for (kind, code, _), num_called in scripts:
        assert (kind, code, num_called) == ("UsageError", "collective-inside-evaluation-shards", 1)


@pytest.mark.parametrize(("nproc", "num_called"), [(1, 3), (2, 2)])
def test_a_forward_pass_may_be_a_collective_in_the_shards_of_an_evaluation(standing_crew, nproc, num_called):
    scripts = standing_crew(nproc, team_scripts.collective_in_an_evaluation, 3, shards=2, strategy="fsdp", timeout_s=20.0)
    assert scripts == [(None, num_called)] * nproc


@pytest.mark.parametrize("then", team_scripts.LEFT_EARLY)
def test_shards_that_are_left_early_are_an_error_at_the_next_thing_the_script_does(standing_crew, then):
    codes = standing_crew(2, team_scripts.left_early, then, shards=2, timeout_s=20.0)
    assert set(codes) <= {"inside-shards", "shards-left-early"}, codes


@pytest.mark.parametrize(("nproc", "shards"), [(1, 2), (2, 4)])
def test_gradients_of_a_wide_model_of_shards_that_are_left_do_not_come_into_later_steps(standing_crew, nproc, shards):
    alone = [[1.0], [1.0]]
    # They are on their way to other ranks by then, and are not to be taken back.
    then = [alone] * 6 if nproc == 1 else ["UsageError"] * 2
    for found in standing_crew(nproc, team_scripts.go_on_after_leaving, 1000, shards, shards=shards):
        assert found == [alone, "ValueError", "UsageError", *then]


def test_a_state_of_each_shard_begins_as_a_copy_and_is_its_own_on_every_process(standing_crew):
    for nproc in (1, 2, 3):
        by_rank = standing_crew(nproc, team_scripts.states_of_shards, [-1.0], shards=4)
        seen = sorted(row for rows, _ in by_rank for row in rows)
        expected = []
        for step in range(1, 4):
            for first in range(0, 8, 2):
                expected.append((step, 8.0 * (step - 1) + first, [-1.0, *(8.0 * n + first for n in range(step - 1))]))
        assert seen == expected
        assert all(start == [-1.0] for _, start in by_rank)


def test_states_of_shards_start_over_when_they_are_reset(standing_crew):
    by_rank = standing_crew(2, team_scripts.states_of_shards, [-1.0], 2, shards=4)
    seen = {(step, first): kept for rows, _ in by_rank for step, first, kept in rows}
    for first in range(0, 8, 2):
        assert seen[2, 8.0 + first] == [-1.0, float(first)]
        assert seen[3, 16.0 + first] == [-1.0]


def test_a_shard_keeps_what_it_was_given_though_the_script_reuses_it(standing_crew):
    for found in standing_crew(2, team_scripts.one_tensor_for_all_shards, shards=4):
        assert found == {(step, first): first - 8.0 if step > 1 else 0.0 for step, first in found}


@pytest.mark.parametrize("at_start", [True, False])
def test_what_a_shard_cannot_take_along_is_refused_where_it_is_assigned(standing_crew, at_start):
    [(code, error, beyond)] = standing_crew(1, team_scripts.keep_a_function_for_each_shard, at_start)
    assert code == "value-not-savable"
    assert "per_shard('kept')" in error
    assert beyond == []


def test_one_shard_on_one_process_is_the_plain_loop_to_the_bit(standing_crew):
    plain, plain_norms = standing_crew(1, team_scripts.train_plainly)[0]
    ours, norms = standing_crew(1, team_scripts.train_to_the_end)[0]
    assert ours == plain
    assert norms == plain_norms
    others, _ = standing_crew(1, team_scripts.train_to_the_end, 2)[0]
    assert others != plain  # the comparison can fail: two shards have two BatchNorm statistics


def test_no_rank_remembers_checkpoints_that_are_written(standing_crew, tmp_path):
    assert standing_crew(2, team_scripts.save_each_step, shards=2, run_dir=str(tmp_path / "run")) == [0, 0]
