"""``fsdp``: each rank keeps a part of the model, and the answer is that of ``exact``, bit for
bit."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path

import fsdp_scripts as scripts
import pytest
import torch
import torch.distributed as dist
from codes import raises, refusal_of
from torch import nn

from lockstep._base.errors import LaunchError, PeerError
from lockstep._cli.main import main
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.checkpoint.parts import state_files, weights_files
from lockstep._state.checkpoint.store import Store
from lockstep._state.checkpoint.weights import load_weights
from lockstep._sync.buckets import ABSENT
from lockstep._sync.slices import Slices
from lockstep._sync.timed_comms import Waited
from lockstep._tools.replay.digests import DIRECTORY
from lockstep._tools.verify.trace.lines import read_ranks

pytestmark = pytest.mark.timeout(90)


def assert_same(found, expected):
    assert found["numbers"].keys() == expected["numbers"].keys()
    for name, values in expected["numbers"].items():
        assert found["numbers"][name] == values, name
    assert found["norms"] == expected["norms"][-len(found["norms"]) :]
    for name in ("by hand", "evaluated", "rates", "step"):
        assert found[name] == expected[name], name


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("nproc", "shards", "weight"),
    [(2, 4, None), pytest.param(4, 8, 0.5, marks=LONG)],
)
def test_the_answer_is_that_of_one_process_to_the_bit(crew, nproc, shards, weight):
    task = partial(scripts.train, weight=weight)
    [expected] = crew(1, task, strategy="exact", shards=shards)
    results = crew(nproc, task, strategy="fsdp", shards=shards)
    for result in results:
        assert_same(result, expected)
        assert result["not spread"] == []
        assert result["numbers"] == results[0]["numbers"]
        assert result["whole"] == 0, "the parameters from before are kept"
    assert sum(result["part"] for result in results) == pytest.approx(1)
    assert max(result["part"] for result in results) < 1.3 / nproc + 1e-9


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (("fsdp", 2), ("exact", 1)),
        pytest.param(("exact", 3), ("fsdp", 4), marks=LONG),
    ],
)
def test_a_checkpoint_is_gone_on_with_by_any_strategy_on_any_number_of_processes(crew, first, then):
    [expected] = crew(1, scripts.train, strategy="exact", shards=4)
    settings = {"shards": 4, "run_dir": "run"}
    with pytest.raises(LaunchError, match="status 7"):
        crew(first[1], partial(scripts.train, die_after=5), strategy=first[0], **settings)
    for result in crew(then[1], scripts.train, strategy=then[0], **settings):
        assert_same(result, expected)
        assert len(result["norms"]) == scripts.NUM_STEPS - 5, "it did not go on, but began anew"


def test_each_rank_saves_its_part_and_all_together_are_what_exact_saves_with_the_same_digests(crew, tmp_path):
    settings = {"shards": 4, "journal_every": 1}
    [(expected, _, exact_dir)] = crew(1, scripts.keep_best, strategy="exact", **settings)
    results = crew(2, scripts.keep_best, strategy="fsdp", **settings)
    for weights, read, _ in results:
        assert read == [weights, weights, weights]
        assert weights == expected
    run_dir = Path(results[0][2])
    checkpoint = Store(run_dir).newest()
    files = Manifest.read(checkpoint).files
    assert weights_files("model.safetensors", files) == ["model.rank-0.safetensors", "model.rank-1.safetensors"]
    best = Manifest.read(run_dir / "best").files
    for names in (weights_files("model.safetensors", files), state_files(files), weights_files("model.safetensors", best)):
        sizes = [{**files, **best}[name]["bytes"] for name in names]
        assert len(sizes) == 2
        assert max(sizes) < 0.65 * sum(sizes)
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", "export", str(checkpoint), str(tmp_path / "whole.safetensors")])
    assert not ended.value.code
    assert (tmp_path / "whole.safetensors").read_bytes() == (Path(exact_dir) / "best" / "model.safetensors").read_bytes()
    assert digests_in(run_dir) == digests_in(Path(exact_dir))


@pytest.mark.parametrize(("strategy", "whose"), [("fsdp", "all"), ("fsdp", 1), ("fsdp", None), ("exact", "all")])
def test_weights_that_were_changed_after_the_last_epoch_are_in_the_last_checkpoint(crew, strategy, whose):
    (weights, run_dir), _ = crew(2, scripts.change_after_the_last_epoch, whose, strategy=strategy, shards=4)
    saved = load_weights(run_dir)
    assert {name: tensor.tolist() for name, tensor in saved.items()} == {name: w.tolist() for name, w in weights.items()}
    saves = [event for event in events_in(Path(run_dir)) if event["event"] == "checkpoint"]
    assert len(saves) == (1 if whose is None else 2)


def events_in(run_dir):
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]


def digests_in(run_dir):
    """Those of gradients and of the state after each step, as the run's digest journal has them."""
    lines = [line for line in read_ranks(run_dir, DIRECTORY)[0] if "state" in line]
    assert len(lines) == 4
    return [(line["last"], [digest for digest, _ in line["gradients"]], line["state"]) for line in lines]


def test_an_evaluation_may_leave_batches_out_and_be_left_early_although_its_forward_pass_is_a_collective(crew):
    [expected] = crew(1, scripts.evaluate_in_part, strategy="single")
    assert expected["the first three"].keys() == {"loss"}
    assert expected["odd ones"].keys() == {"loss", "again"}
    for found in crew(2, scripts.evaluate_in_part, strategy="fsdp"):
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert found[name] == pytest.approx(values, rel=1e-12), name


@pytest.mark.parametrize("precision", ["bf16-mixed", pytest.param("bf16-true", marks=LONG)])
def test_it_trains_in_other_precisions_with_the_answer_of_exact(crew, precision):
    settings = {"shards": 4, "precision": precision}
    task = partial(scripts.train_narrow, torch.optim.AdamW if precision == "bf16-true" else torch.optim.SGD)
    [expected] = crew(1, task, strategy="exact", **settings)
    found = crew(2, task, strategy="fsdp", **settings)
    assert found == [expected] * 2
    assert found[0][-1] < 0.9 * found[0][0], "nothing was learned"


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("used optimizer", "Drifting"),
        ("sharded before", "'first.weight' of FSDPModel"),
        ("fused", "AdamW(fused=True)"),
        ("fused later", "AdamW(fused=True)"),
        ("whole tensors", "Muon"),
    ],
)
def test_what_cannot_be_prepared_is_refused_by_name(crew, what, named):
    for kind, _, message in crew(2, refusal_of, scripts.try_to, what, strategy="fsdp", shards=6):
        assert kind in ("ModelError", "UsageError")
        assert named in message


@pytest.mark.parametrize(
    ("what", "code", "named"),
    [
        ("scalar", "fsdp-scalar-parameter", "'scale'"),
        ("few samples", "fsdp-empty-shard", "step 5"),
        ("other blocks", "different-blocks", "step 1"),
        ("other results", "different-blocks", "step 1"),
        ("a penalty", "fsdp-sharded-loss", "'blocks.1.inner.bias'"),
        ("a penalty of parts", "fsdp-sharded-loss", "DTensor"),
        ("a penalty of before", "fsdp-sharded-loss", "'blocks.1.inner.bias'"),
        ("shared parameters", "fsdp-shared-parameter", "weight'"),
        ("a graph of gradients", "create-graph", "'fsdp'"),
    ],
)
def test_what_cannot_work_is_refused_on_every_rank(crew, what, code, named):
    for _, found, message in crew(2, refusal_of, scripts.try_to, what, strategy="fsdp", shards=6):
        assert found == code
        assert named in message


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("slots", [{0, 1, 2, 3}, {1, 3}, set()])
def test_a_leaf_holds_gradients_and_the_neutral_element_and_nothing_else(world_size, slots):
    shapes = [(7, 5), (1,), (16, 16), (2, 9)]
    slices = Slices([nn.Parameter(torch.ones(shape)) for shape in shapes], torch.float32, world_size)
    leaves = [slices.new_leaf().fill_(value) for value in (ABSENT, float("nan"))]
    for leaf, slot in product(leaves, slots):
        slices.put(leaf, slot, torch.ones(shapes[slot]), 0.5, adds=False)
    expected, found = (leaf.view(torch.int32) for leaf in (leaves[0], slices.complete(leaves[1], slots)))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("norm_type", "most_bytes"), [(2.0, 1 << 20), (1.0, 100), (math.inf, 0)])
def test_norms_and_clipped_gradients_are_those_of_whole_tensors_to_the_bit(standing_crew, norm_type, most_bytes):
    shapes = [(7, 5), (1, 3), (6,), (2, 2, 9), (5, 1), (12, 4), (3, 7)]
    for nproc in (1, 3):
        for found in standing_crew(nproc, scripts.clip, shapes, norm_type, most_bytes):
            for dtype, (sharded, whole) in found.items():
                torch.testing.assert_close(sharded, whole, rtol=0, atol=0, msg=lambda text, dtype=dtype: f"{dtype}: {text}")


def test_a_pass_in_which_another_rank_takes_no_part_times_out():
    store, long, short = dist.HashStore(), timedelta(seconds=60), dist.AllreduceOptions()
    short.timeout = timedelta(seconds=0.2)
    with ThreadPoolExecutor() as threads:
        mine, _other = threads.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, timeout=long), range(2))
    with raises(PeerError, "pass-timeout"):
        Waited().call(lambda: mine.allreduce([torch.ones(1)], short).wait())


@pytest.mark.parametrize(
    ("settings", "code"), [({"shards": 3}, "fsdp-uneven-shards"), ({"precision": "16-master"}, "fsdp-master-copies")]
)
def test_settings_that_do_not_go_with_it_are_refused(crew, settings, code):
    found = crew(2, refusal_of, scripts.try_to, "nothing", strategy="fsdp", **settings)
    assert [(kind, its_code) for kind, its_code, _ in found] == [("ConfigError", code)] * 2


def test_optimizers_that_round_short_tensors_differently_are_refused_for_16_bit_parameters(crew):
    [(kind, _, message)] = crew(1, refusal_of, scripts.train_narrow, strategy="fsdp", shards=4, precision="bf16-true")
    assert kind in ("ConfigError", "ModelError", "UsageError")
    assert message.startswith("SGD ")
