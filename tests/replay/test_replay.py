"""Promises of ``lockstep replay``: any step of a run, again, to the bit; and nothing is called
equal that is not."""

import json
import re

import pytest
import torch

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


@pytest.mark.parametrize(("step", "origin", "states"), [(2, "the beginning", "1, 2"), (8, "step-0000000", "(4, )?8")])
def test_a_step_of_a_run_killed_on_three_processes_is_taken_again_on_one_to_the_bit(bench, healthy, step, origin, states):
    done = bench.replay(healthy, "--step", step)
    assert done.status == 0, done.all
    assert f"from {origin}" in done.out, done.all
    assert "EQUAL to the run, to the bit: samples and losses of step" in done.out, done.all
    assert re.search(f"gradient and state after {states}$", done.out, flags=re.MULTILINE), done.all
    assert len(re.findall(r"  shard \d: loss \S+, 2 samples: \d+ \d+", done.out)) == 4, done.all
    assert re.search(rf"^step {step}  learning rate: optimizer 0.0", done.out, flags=re.MULTILINE), done.all
    assert re.search(r"^  gradient norm: ", done.out, flags=re.MULTILINE), done.all


def test_several_steps_on_two_processes_with_their_batches(bench, healthy):
    found, status = bench.replay_json(healthy, "--step", 5, "--to", 6, "--nproc", 2, "--shard", 1, "--out", "batch.pt")
    assert (status, found["verdict"]) == (0, "equal")
    assert [(line["step"], line["shard"]) for line in found["shards"]] == [(5, 1), (6, 1)]
    batches = torch.load(bench.directory / "batch-rank-0.pt")
    assert [batch["step"] for batch in batches] == [5, 6]
    assert [batch["samples"] for batch in batches] == [line["samples"][0] for line in found["shards"]]
    assert all(len(batch["batch"][0]) == 2 for batch in batches)


def test_a_script_with_a_breakpoint_stops_in_that_step_with_the_shards_batch(bench, healthy):
    changed = bench.directory / "stops.py"
    text = (bench.directory / "spiky.py").read_text()
    changed.write_text(
        text.replace(
            "                team.backward", "                team.step == 4 and breakpoint()\n                team.backward"
        )
    )
    done = bench.replay(
        healthy, "--step", 4, "--script", changed, stdin="p ('mine', tuple(x.shape), team.step)\n" + 4 * "c\n"
    )
    assert "('mine', (2, 4), 4)" in done.all, done.all
    assert (done.status, "EQUAL to the run" in done.out) == (0, True), done.all


def test_a_changed_script_is_said_and_not_called_equal(bench, healthy):
    changed = bench.directory / "changed.py"
    changed.write_text((bench.directory / "spiky.py").read_text().replace("loss = nn.", "loss = 2 * nn."))
    done = bench.replay(healthy, "--step", 5, "--script", changed)
    assert done.status == 1, done.all
    assert "the script has changed" in done.out, done.all
    assert "DIFFERENT from the run, first in step 4, shard 0: loss" in done.out, done.all


def test_the_sample_behind_a_nan_is_named(bench):
    run = bench.train("nan", "plant=nan", nproc=4, status=1)
    done = bench.replay(run, "--step", "nan", "--blame")
    assert done.status == 0, done.all
    assert re.search(r"step \d+ is the first with a NaN: the loss of shard \d", done.out), done.all
    assert re.search(r"to blame in shard \d: sample 13 \(loss nan\)", done.out), done.all


def test_the_sample_behind_a_spike_is_named(bench):
    run = bench.train("spike", "plant=spike", nproc=4)
    done = bench.replay(run, "--step", "worst-loss", "--blame")
    assert done.status == 0, done.all
    assert re.search(r"to blame in shard \d: sample 13 \(loss \S+\); the median of the other 1 is", done.out), done.all


def test_with_batch_norm_the_shard_is_named_and_why_no_sample(bench):
    run = bench.train("normed", "plant=spike", "norm=1", nproc=1)
    done = bench.replay(run, "--step", "worst-loss", "--blame")
    assert done.status == 0, done.all
    assert re.search(r"to blame: shard \d .* cannot be told apart: '1' normalizes over all of them \(BatchNorm\)", done.out)


def test_a_run_without_shards_is_equal_up_to_rounding_and_the_tolerance_is_named(bench):
    run = bench.train("plain", nproc=3, shards=None)
    done = bench.replay(run, "--step", 8)
    assert done.status == 0, done.all
    equal_by_chance = "EQUAL to the run, to the bit" in done.out
    assert equal_by_chance or "compared within 0.001 of each loss" in done.out, done.all


def test_a_data_set_that_has_changed_is_named_as_the_cause(bench):
    file = bench.directory / "targets.pt"
    torch.save(torch.zeros(40, 1), file)
    try:
        run = bench.train("data", nproc=2)
        torch.save(torch.ones(40, 1), file)
        done = bench.replay(run, "--step", 4)
    finally:
        file.unlink()
    assert done.status == 1, done.all
    assert "DIFFERENT from the run, first in step 4, shard 0: what is in the batch" in done.out, done.all
    assert "that no checkpoint has" in done.out, done.all


@pytest.fixture
def edited(healthy):
    """``edited(file, old, new)``: a file of the healthy run says something else, for one test."""
    before = {}

    def edit(name, old, new):
        path = healthy / name
        before[path] = path.read_text()
        assert old in before[path]
        path.write_text(before[path].replace(old, new))

    yield edit
    for path, text in before.items():
        path.write_text(text)


def test_another_version_of_pytorch_is_said(bench, healthy, edited):
    edited("events.jsonl", f'"torch": "{torch.__version__}"', '"torch": "1.2.3"')
    done = bench.replay(healthy, "--step", 4)
    assert f"torch is {torch.__version__} here, and was 1.2.3 in the run" in done.out, done.all


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_run_of_a_gpu_is_not_replayed_without_one(bench, healthy, edited):
    edited("birth.json", '"device": "cpu"', '"device": "cuda"')
    done = bench.replay(healthy, "--step", 4)
    assert done.status != 0
    assert "was trained on a GPU, and this machine has none" in done.err, done.all


def test_a_run_without_a_digest_journal_is_replayed_and_not_called_equal(bench):
    settings = ("--threads", "1", "--checkpoint-every", "3", "--journal-every", "0", "--progress", "off")
    run = bench.train("silent", nproc=1, settings=settings)
    done = bench.replay(run, "--step", 8)
    assert (done.status, "not compared: the run has no digest journal" in done.out) == (3, True), done.all
    done = bench.replay(run, "--step", "nan")
    assert (done.status, "has none: give the number of the step" in done.err) == (2, True), done.all


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--step", 11), "step 11 was never taken: the last step of"),
        (("--step", 5, "--to", 4), "M must not be before N"),
        (("--step", "nan"), "is NaN"),
        (("--step", 5, "--shard", 4), "the run has 4 shards, numbered from 0"),
        (("--step", 5, "--nproc", 5), "at most as many processes"),
        (("--step", 5, "--nproc", 2, "--blame"), "needs one process"),
    ],
)
def test_what_cannot_be_replayed_is_refused_in_words(bench, healthy, words, said):
    done = bench.replay(healthy, *words)
    assert (done.status, said in done.err) == (2, True), done.all


def test_two_runs_are_compared_whatever_their_number_of_processes(bench, healthy):
    alone = bench.train("alone", nproc=1)
    done = bench.say("diff", healthy, alone)
    assert done.status == 0, done.all
    assert "EQUAL  samples and losses of steps 1 to 10; gradient and state after 4 of them" in done.out, done.all
    assert re.search(r"world_size: 2, and 1", done.out), done.all


def test_the_first_step_in_which_two_runs_differ_is_found_and_what_else_differs(bench, healthy):
    other = bench.train("other", "lr=0.03", nproc=1)
    done = bench.say("diff", healthy, other, "--json")
    found = json.loads(done.out)
    assert (done.status, found["equal"], found["difference"]["step"], found["difference"]["stage"]) == (1, False, 1, "state")
    assert ["args", ["kill=7", "lr=0.03"]] in [[item["what"], item["values"]] for item in found["settings"]]
    assert bench.say("diff", healthy, other).out.startswith("DIFFERENT  first in step 1: the state: optimizer: digest ")
