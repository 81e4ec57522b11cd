"""Promises of ``lockstep replay``: any step of a run, again, to the bit; and nothing is called
equal that is not."""

import json
import re

import pytest
import torch

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]


@pytest.mark.parametrize(("step", "has_checkpoint"), [(2, False), (8, True)])
def test_a_step_of_a_run_killed_on_three_processes_is_taken_again_on_one_to_the_bit(bench, healthy, step, has_checkpoint):
    found, status = bench.replay_json(healthy, "--step", step)
    assert (status, found["verdict"], found["after"] > 0) == (0, "equal", has_checkpoint)
    assert found["compared"]["steps"][-1] == found["compared"]["states"][-1] == step
    assert [(line["step"], len(line["samples"][0])) for line in found["shards"]] == [(step, 2)] * 4
    assert found["rates"][str(step)]["optimizer"] > 0
    assert found["norms"][0]["step"] == step


def test_a_replay_prints_each_shards_loss_and_samples_the_learning_rate_and_the_norms(bench, healthy):
    done = bench.replay(healthy, "--step", 8)
    assert done.status == 0, done.all
    assert re.search(r"^EQUAL ", done.out, flags=re.MULTILINE), done.all
    assert len(re.findall(r"  shard \d: loss \S+, 2 samples: \d+ \d+", done.out)) == 4, done.all
    assert re.search(r"^step 8  learning rate: optimizer 0.0", done.out, flags=re.MULTILINE), done.all
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
    assert (done.status, "\nEQUAL " in done.out) == (0, True), done.all


def test_a_changed_script_is_said_and_not_called_equal(bench, healthy):
    changed = bench.directory / "changed.py"
    changed.write_text((bench.directory / "spiky.py").read_text().replace("loss = nn.", "loss = 2 * nn."))
    found, status = bench.replay_json(healthy, "--step", 5, "--script", changed)
    first = found["compared"]["difference"]
    assert (status, found["verdict"], first["step"], first["shard"], first["stage"]) == (1, "different", 4, 0, "loss")
    assert any("SHA-256" in line for line in found["why"]), found["why"]


def test_the_sample_behind_a_nan_is_named(bench):
    run = bench.train("nan", "plant=nan", nproc=4, status=1)
    done = bench.replay(run, "--step", "nan", "--blame")
    assert done.status == 0, done.all
    assert re.search(r"^step \d+ .*NaN.* shard \d$", done.out, flags=re.MULTILINE), done.all
    assert re.search(r"shard \d: sample 13 \(loss nan\)$", done.out, flags=re.MULTILINE), done.all


def test_the_sample_behind_a_nan_is_named_also_in_a_second_loop_and_the_first_of_its_backward_calls(bench):
    run = bench.train("late", "plant=late", "phases=2", nproc=2, status=1)
    found, status = bench.replay_json(run, "--step", "nan", "--blame")
    assert (status, found["blamed"], len(found["alone"])) == (0, [13], 2)


def test_the_sample_behind_a_spike_is_named(bench):
    run = bench.train("spike", "plant=spike", nproc=4)
    found, status = bench.replay_json(run, "--step", "worst-loss", "--blame")
    assert (status, found["blamed"]) == (0, [13])
    assert len(found["alone"]) == 2


def test_with_batch_norm_the_shard_is_named_and_why_no_sample(bench):
    run = bench.train("normed", "plant=spike", "norm=1", nproc=1)
    done = bench.replay(run, "--step", "worst-loss", "--blame")
    assert done.status == 0, done.all
    assert re.search(r"blame: shard \d .* '1' .*BatchNorm", done.out), done.all


def test_a_run_without_shards_is_equal_up_to_rounding_and_the_tolerance_is_named(bench):
    run = bench.train("plain", nproc=3, shards=None)
    found, status = bench.replay_json(run, "--step", 8)
    assert status == 0
    equal_by_chance = found["verdict"] == "equal"
    assert equal_by_chance or found["verdict"] == "equal up to rounding"
    assert equal_by_chance or any("0.001" in line for line in found["why"]), found["why"]


def test_a_data_set_that_has_changed_is_named_as_the_cause(bench):
    file = bench.directory / "targets.pt"
    torch.save(torch.zeros(40, 1), file)
    try:
        run = bench.train("data", nproc=2)
        torch.save(torch.ones(40, 1), file)
        found, status = bench.replay_json(run, "--step", 4)
    finally:
        file.unlink()
    first = found["compared"]["difference"]
    assert (status, found["verdict"], first["step"], first["shard"], first["stage"]) == (1, "different", 4, 0, "content")
    assert any("dataset" in line for line in found["why"]), found["why"]


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
    found, _ = bench.replay_json(healthy, "--step", 4)
    assert any(torch.__version__ in line and "1.2.3" in line for line in found["why"]), found["why"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_run_of_a_gpu_is_not_replayed_without_one(bench, healthy, edited):
    edited("birth.json", '"device": "cpu"', '"device": "cuda"')
    done = bench.replay(healthy, "--step", 4)
    assert (done.status, done.code) == (2, "replay-needs-gpu"), done.all


def test_a_run_without_a_digest_journal_is_replayed_and_not_called_equal(bench):
    settings = ("--threads", "1", "--checkpoint-every", "3", "--journal-every", "0", "--progress", "off")
    run = bench.train("silent", nproc=1, settings=settings)
    found, status = bench.replay_json(run, "--step", 8)
    assert (status, found["verdict"], found["compared"]) == (3, "unknown", None)
    done = bench.replay(run, "--step", "nan")
    assert (done.status, done.code) == (2, "replay-no-journal"), done.all


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--step", 11), "replay-step-after-end"),
        (("--step", 5, "--to", 4), "replay-step-range"),
        (("--step", "nan"), "no-nan"),
        (("--step", "last"), "replay-unknown-step-name"),
        (("--step", 5, "--shard", 4), "replay-unknown-shard"),
        (("--step", 5, "--nproc", 5), "replay-too-many-processes"),
        (("--step", 5, "--nproc", 2, "--blame"), "replay-blame-processes"),
    ],
)
def test_what_cannot_be_replayed_is_refused(bench, healthy, words, code):
    done = bench.replay(healthy, *words)
    assert (done.status, done.code) == (2, code), done.all


def test_two_runs_are_compared_whatever_their_number_of_processes(bench, healthy):
    alone = bench.train("alone", nproc=1)
    done = bench.say("diff", healthy, alone, "--json")
    found = json.loads(done.out)
    assert (done.status, found["equal"], found["steps"], len(found["states"])) == (0, True, [1, 10], 4)
    assert ["world_size", ["2", "1"]] in [[item["what"], item["values"]] for item in found["settings"]]
    assert re.search(r"^EQUAL .*\n(.*\n)*    world_size: 2 vs 1$", bench.say("diff", healthy, alone).out, flags=re.MULTILINE)


def test_the_first_step_in_which_two_runs_differ_is_found_and_what_else_differs(bench, healthy):
    other = bench.train("other", "lr=0.03", nproc=1)
    done = bench.say("diff", healthy, other, "--json")
    found = json.loads(done.out)
    assert (done.status, found["equal"], found["difference"]["step"], found["difference"]["stage"]) == (1, False, 1, "state")
    assert ["args", ["kill=7", "lr=0.03"]] in [[item["what"], item["values"]] for item in found["settings"]]
    assert bench.say("diff", healthy, other).out.startswith("DIFFERENT  ")
