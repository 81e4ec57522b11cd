"""Writes that fail and are slow, drawn at random, in runs of one or several ranks: each save is
whole or absent, and is the state of its moment; what failed is reported once, and holds up
nothing."""

from math import inf, isnan, nan
from pathlib import Path
from random import Random

import pytest
from failing_writes import Plan, fail_while_writing, go_on_until_written, train_all
from seeds import seeds

from lockstep._base.stopping import REQUEUE_STATUS, UNSAVED_STATUS
from lockstep._events.history import read_events
from lockstep._state.checkpoint.manifest import verify
from lockstep._state.checkpoint.store import BEST

pytestmark = [pytest.mark.timeout(90), pytest.mark.quick]
NUM_STEPS = 12
FAILS_WHILE_THE_BEST_WAIT = Plan(
    NUM_STEPS, 2, [], {2: 1.0, NUM_STEPS: -1.0}, {(1, "1")}, {(1, "1"): 0.1, (1, "best-1"): 0.2}
)
"""The write fails in the first step. That is known to all before they save the best weights."""
FAILS_BETWEEN_EXCHANGES = Plan(
    NUM_STEPS, 2, [], {6: 1.0, NUM_STEPS: -1.0}, {(1, "1")}, {}, every=4, waits_alone={(1, 5), (1, 6)}
)
"""Rank 1 knows that it has failed. The others, which wait for it, are told when all wait."""
BEST_ALONE = Plan(NUM_STEPS, 2, [], {2: 1.0, NUM_STEPS: -1.0}, set(), {(0, "best-2"): 0.1}, every="off")
"""The last best weights are being written when the script ends."""


def drawn(seed, nproc, num_best_writers):
    """A plan. The saves at the end succeed: all others may fail on any rank, or be slow."""
    random = Random(seed)
    waits = [step for step in range(1, NUM_STEPS) if step % 2 or random.random() < 0.3]
    at = [1, *random.sample(range(2, NUM_STEPS), 2)]
    metrics = {step: random.choice([1.0, 2.0, inf, nan]) for step in at}
    metrics[1] = inf if seed % 3 == 0 else metrics[1]
    metrics[NUM_STEPS] = -1.0  # the best of all, whose write succeeds
    # At least so many are saved before the end: after a wait nothing is being written.
    least = len(set(waits).difference(at))
    saves = [(rank, str(number)) for rank in range(nproc) for number in range(1, least + 1)]
    better = sum(is_better for is_better, _ in expected_best(metrics).values())
    bests = [(rank, f"best-{number}") for rank in range(num_best_writers) for number in range(1 + (seed % 3 == 0), better)]
    fails = {*random.sample(saves, 3), *random.sample(bests, min(len(bests), 1 + seed % 2))}
    last = [(rank, f"best-{better}") for rank in range(num_best_writers)]
    delays_s = {save: random.choice([0.0, 0.0, 0.01, 0.03]) for save in [*saves, *bests, *last]}
    return Plan(NUM_STEPS, random.randint(1, 3), waits, metrics, fails, delays_s)


def expected_best(metrics):
    """By step, whether a metric is the best so far (the least), and the best from then on."""
    found, best = {}, None
    for step in sorted(metrics):
        is_better = not isnan(metrics[step]) and (best is None or metrics[step] < best)
        best = metrics[step] if is_better else best
        found[step] = is_better, best
    return found


def asked_to_stop(seed, nproc):
    """A plan in which some ranks are asked to stop, and one perhaps can write nothing then."""
    random = Random(seed)
    asked = {rank: random.randint(3, 8) for rank in random.sample(range(nproc), random.randint(1, nproc))}
    fails_at_stop = [None, 0, nproc - 1][seed % 3]
    # The rank that fails is the last to do so.
    delays_s = {(rank, str(n)): 0.05 * (rank == fails_at_stop) for rank in range(nproc) for n in range(1, 12)}
    return Plan(NUM_STEPS, 2, [1], {2: 0.5}, set(), delays_s, asked, fails_at_stop)


def check_saves(plan, ranks, told):
    """What was saved, and reported. Returns the steps of the checkpoints that were written."""
    main, run_dir = ranks[0], Path(ranks[0].run_dir)
    failed = set().union(*(rank.failed for rank in ranks))
    # The same saves on every rank, in the same order, of the same steps.
    checkpoints = [number for number in main.saves if not number.startswith("best")]
    assert all([n for n in rank.saves if n in checkpoints] == checkpoints for rank in ranks), told
    whole = {number: {} for number in main.saves}
    for rank in ranks:
        for number, (step, content) in rank.saves.items():
            assert step == main.saves[number][0], told
            whole[number].update(content)
    # Just those that failed on no rank got their names, in order, with the content of their moment.
    assert [number for number, _ in main.committed] == [number for number in main.saves if number not in failed], told
    for number, content in main.committed:
        assert content == whole[number], f"{told}, save {number}"
    steps = [main.saves[number][0] for number in checkpoints if number not in failed]
    for number, names in enumerate(main.kept, 1):
        kept = {f"step-{step:08d}" for step in steps[max(0, number - plan.keep) : number]}
        assert {name for name in names if not name.startswith(".writing-")} == {"newest", *kept}, told
    # Each failure is reported once, on the rank that it happened on and on rank 0.
    events = [*read_events(run_dir)]
    written = [event for event in events if event["event"] == "checkpoint"]
    expected = [("weights" if n.startswith("best") else "checkpoint", main.saves[n][0]) for n, _ in main.committed]
    assert [(event["kind"], event["step"]) for event in written] == expected, told
    assert all((event["held_s"] is None) == (event["kind"] == "weights") for event in written), told
    lost = [event["step"] for event in events if event["event"] == "checkpoint_failed"]
    assert lost == [step for number, (step, _) in main.saves.items() if number in failed], told
    for number, rank in enumerate(ranks):
        own, of_any = (sum(each in which for each in rank.saves) for which in (rank.failed, failed))
        # Rank 0 deletes what has failed, perhaps while another rank is still writing there.
        assert (own if number else of_any) <= len(rank.codes) <= of_any, told
        assert {*rank.codes} <= {"checkpoint-not-written"}, told
        assert {*rank.idle} <= {(None, False)}, told
    return steps


def check(plan, ranks, told):
    steps, main, run_dir = check_saves(plan, ranks, told), ranks[0], Path(ranks[0].run_dir)
    best = verify(run_dir / BEST)
    assert (best.step, best.metric) == (NUM_STEPS, -1.0), told
    for rank in ranks:
        assert rank.best == expected_best(plan.metrics), told
        assert rank.num_saved == sum(not number.startswith("best") for number in rank.saves), told
    left = {path.name for path in (run_dir / "checkpoints").iterdir()}
    if plan.every == "off":
        assert (steps, left) == ([], set()), told
        return
    assert steps[-1] == NUM_STEPS, told
    # At the end nothing is left of failed attempts.
    assert left == main.kept[-1], told
    assert all(not name.startswith(".writing-") for name in left), told
    assert verify(run_dir / "checkpoints" / f"step-{NUM_STEPS:08d}").finished, told
    held_s = [event["held_s"] for event in read_events(run_dir) if event.get("held_s") is not None]
    assert 0 < sum(held_s) <= main.pause_s + 1e-6, told


def check_stopped(plan, ranks, told):
    steps, run_dir = check_saves(plan, ranks, told), Path(ranks[0].run_dir)
    [told_of] = [event for event in read_events(run_dir) if event["event"] == "preempted"]
    saved = plan.fails_at_stop is None
    assert {rank.status for rank in ranks} == {REQUEUE_STATUS if saved else UNSAVED_STATUS}, told
    assert (told_of["signal"], told_of["saved"]) == ("SIGTERM", saved), told
    assert told_of["step"] >= min(plan.asked.values()), told
    # The lowest of the ranks that had been asked by then.
    assert told_of["rank"] in [rank for rank, step in plan.asked.items() if step <= told_of["step"]], told
    assert (steps[-1] == told_of["step"]) == saved, told


@pytest.mark.parametrize(
    ("nproc", "strategy", "first"),
    [
        (1, "exact", 0),
        (2, "exact", 100),
        pytest.param(2, "fsdp", 200, marks=pytest.mark.long),
        pytest.param(3, "fsdp", 300, marks=pytest.mark.long),
    ],
)
def test_each_save_is_whole_or_absent_and_the_state_of_its_moment(crew, nproc, strategy, first):
    plans = [drawn(seed, nproc, nproc if strategy == "fsdp" else 1) for seed in seeds(first, 2)]
    stops = [asked_to_stop(seed, nproc) for seed in seeds(first + 50, 2)]
    every = [*plans, *stops, BEST_ALONE, *([FAILS_WHILE_THE_BEST_WAIT, FAILS_BETWEEN_EXCHANGES] if nproc > 1 else [])]
    found = crew(nproc, train_all, every, "run", strategy=strategy, shards=nproc)
    for number, plan in enumerate(every):
        (check_stopped if plan.asked else check)(plan, [of_rank[number] for of_rank in found], f"plan {number}: {plan}")


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_script_that_fails_while_a_checkpoint_is_written_has_that_checkpoint(crew, tmp_path, nproc):
    for seen in crew(nproc, fail_while_writing, "run"):
        assert (list(seen.saves), seen.codes) == (["1"], [])
    assert {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()} == {"newest", "step-00000001"}
    events = [(event["event"], event.get("step")) for event in read_events(tmp_path / "run")]
    assert ("checkpoint", 1) in events


def test_steps_alone_tell_rank_0_not_to_wait_for_a_part_that_will_not_come(crew):
    num_written, _ = crew(2, go_on_until_written, "run", 15.0)
    assert num_written == 1
