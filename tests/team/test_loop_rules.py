"""The loop's rules: what a body, a step and an epoch are, and what acts when."""

import pytest
import team_scripts

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(("nproc", "shards", "bodies_a_step"), [(1, 1, 1), (2, 2, 1), (1, 4, 4), (2, 4, 2)])
def test_a_body_is_a_shard_and_a_step_is_a_global_batch(crew, nproc, shards, bodies_a_step):
    for rank, seen in enumerate(crew(nproc, team_scripts.watch_steps, 24, 8, 2, shards=shards)):
        assert seen["before"] == (0, 0, True)
        assert seen["len"] == 3
        assert seen["after"] == 6
        assert seen["between"] == [(3, True), (6, True)]
        expected = []
        for step in range(1, 7):
            for index in range(bodies_a_step):
                size, first = 8 // shards, 8 * ((step - 1) % 3) + 8 // shards * (rank * bodies_a_step + index)
                inputs = [float(n) for n in range(first, first + size)]
                epoch = (step - 1) // 3
                expected.append((epoch, epoch, step, index == bodies_a_step - 1, inputs))
        assert seen["bodies"] == expected


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize(("drop_last", "steps"), [(False, 3), (True, 2)])
def test_a_loaders_length_counts_global_steps(crew, nproc, shards, drop_last, steps):
    for seen in crew(nproc, team_scripts.watch_steps, 19, 8, 1, drop_last, shards=shards):
        assert (seen["len"], seen["after"]) == (steps, steps)


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (1, 2), (2, 2), (2, 4)])
@pytest.mark.parametrize("zero_at", ["first", "middle", "last", "model"])
def test_gradients_can_be_cleared_anywhere_and_are_there_only_when_a_step_ends(crew, nproc, shards, zero_at):
    for seen, weights in crew(nproc, team_scripts.gradients_between, zero_at, shards=shards):
        assert [gradient for ends, gradient in seen if not ends] == [None] * (len(seen) - 2)
        assert [gradient for ends, gradient in seen if ends] == pytest.approx([1.5, 5.5])
        assert weights == pytest.approx([1 - 0.15, 1 - 0.15 - 0.55])


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("name", team_scripts.SCHEDULES)
def test_a_schedule_in_the_loop_counts_global_steps_whenever_it_was_made(crew, name, made):
    plain = crew(1, team_scripts.plain_rates, name)[0]
    assert len(set(plain)) > 1
    for nproc, shards in ((1, 1), (2, 4)):
        for rates in crew(nproc, team_scripts.rates_by_step, name, made, shards=shards):
            assert rates == plain


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (2, 4)])
def test_a_schedule_outside_of_the_loop_counts_every_call(crew, nproc, shards):
    for rates in crew(nproc, team_scripts.rates_by_epoch, shards=shards):
        assert [pytest.approx(pair) for pair in rates] == [[1.0, 1.0], [0.5, 1.0], [0.25, 0.1]]


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (2, 4)])
def test_state_dicts_are_those_of_plain_objects(crew, nproc, shards):
    assert crew(nproc, team_scripts.plain_states, shards=shards) == [(True, True, 2)] * nproc


def test_any_answers_when_a_step_ends_for_all_its_bodies_on_every_rank(crew):
    # Step 1: the first body of rank 1, before the step ends. Step 2: nobody.
    for answers, one, none in crew(2, team_scripts.any_in_the_body, {(1, 0)}, shards=4):
        assert answers == [(1, False, False), (1, True, True), (2, False, False), (2, True, False)]
        assert (one, none) == (True, False)


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_ranks_that_ask_any_leave_the_loop_together(crew, nproc, shards):
    assert crew(nproc, team_scripts.stop_together, shards=shards) == [3] * nproc


def test_one_shard_on_one_process_is_the_plain_loop_to_the_bit(crew):
    plain, plain_norms = crew(1, team_scripts.train_plainly)[0]
    ours, norms = crew(1, team_scripts.train_to_the_end)[0]
    assert ours == plain
    assert norms == plain_norms
    others, _ = crew(1, team_scripts.train_to_the_end, 2)[0]
    assert others != plain  # the comparison can fail: two shards have two BatchNorm statistics
