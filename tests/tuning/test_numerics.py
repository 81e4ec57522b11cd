"""What alters the answer is tried, put back whole, and proposed."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lockstep.config import RunConfig
from lockstep.digest import digest
from lockstep.machine import processor
from lockstep.plan.shards import plan_step
from lockstep.precision import find_precision
from lockstep.prepare.model import formats_of, stand_in
from lockstep.prepare.model_precision import ModelPrecision
from lockstep.prepare.watched import Watched
from lockstep.tuning import numerics
from lockstep.tuning.change_trials import KINDS
from lockstep.tuning.compiled import Compiled, compiles
from lockstep.tuning.micro_batches import micro_batches
from lockstep.tuning.request import PROPOSALS
from lockstep.tuning.verdict import apart

pytestmark = pytest.mark.timeout(60)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def session_of(model, optimizer=None, **more):
    formats = ModelPrecision(model, find_precision("32-true"), CPU)
    watched = Watched(1, None, is_plain=True)
    watched.add_model(model, formats)
    if optimizer is not None:
        watched.add_optimizer(optimizer)
    usual = {
        "models": [stand_in(model, model, formats, lambda _: None)],
        "watched": watched,
        "config": RunConfig(),
        "device": CPU,
        "on_gpu": False,
        "cores": 4.0,
        "rank": 0,
        "world_size": 1,
        "local_world_size": 1,
        "slowest": lambda value: value,
    }
    return SimpleNamespace(**{**usual, **more})


def names_of(row, *args, **more):
    return [change.name for change in row(session_of(*args, **more), None)]


def test_every_kind_that_can_be_asked_for_has_a_row():
    assert tuple(KINDS) == PROPOSALS


def test_threads_and_memory_format_leave_nothing_behind():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
    state, strides = digest(model.state_dict()), [parameter.stride() for parameter in model.parameters()]
    one, four = numerics.threads(session_of(model), None)
    assert (one.name, four.name) == ("1 thread a process", "4 threads a process")
    with four.made():
        assert torch.get_num_threads() == 4
    (last,) = numerics.memory_formats(session_of(model), None)
    with contextlib.suppress(KeyError), last.made():
        assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
        raise KeyError  # a script that leaves its loop meanwhile
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert (digest(model.state_dict()), torch.get_num_threads()) == (state, 2)


def test_only_what_makes_sense_is_tried():
    dense, images = nn.Linear(2, 2), nn.Conv2d(3, 8, 3)
    assert names_of(numerics.threads, dense, cores=2) == ["1 thread a process"]
    assert names_of(numerics.threads, dense, on_gpu=True) == []
    assert names_of(numerics.memory_formats, dense) == []
    assert names_of(numerics.memory_formats, images, world_size=2) == []
    assert names_of(numerics.precisions, dense, config=RunConfig(precision="bf16-mixed")) == []
    (change,) = compiles(session_of(torch.compile(dense, backend="eager")), None)
    assert change.why_not == "the script compiles its model already"
    (change,) = compiles(session_of(dense, config=RunConfig(strategy="fsdp")), None)
    assert change.why_not == "not tried with strategy fsdp"


def test_a_precision_that_this_processor_emulates_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(numerics, "native_formats", lambda: {"bfloat16"})
    brain, half = numerics.precisions(session_of(nn.Linear(2, 2)), None)
    assert (brain.name, brain.why_not) == ("bf16-mixed", "")
    assert (half.name, half.why_not) == ("16-mixed", "this processor emulates float16")
    assert processor.native_formats() <= {"float16", "bfloat16"}


@pytest.mark.parametrize("name", ["bf16-mixed", "16-mixed"])
def test_a_precision_is_that_of_the_passes_while_it_is_tried(monkeypatch, name):
    monkeypatch.setattr(numerics, "native_formats", lambda: {"bfloat16", "float16"})
    model, seen = nn.Linear(2, 2), []
    model.register_forward_hook(lambda _model, _inputs, output: seen.append(output.dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = session_of(model, optimizer)
    own_step = optimizer.step
    change = next(change for change in numerics.precisions(session, None) if change.name == name)
    loss = torch.ones(())
    with change.made():
        assert session.models[0](torch.ones(1, 2)).dtype == torch.float32, "for the loss"
        assert (session.watched.scaling is not None) == (name == "16-mixed")
        assert session.watched.scaling is None or session.watched.scaling.scale(loss) > 1
        assert (optimizer.step == own_step) == (name == "bf16-mixed")
    session.models[0](torch.ones(1, 2))
    assert seen == [torch.bfloat16 if name == "bf16-mixed" else torch.float16, torch.float32]
    assert formats_of(session.models[0]).precision.name == "32-true"
    assert (session.watched.scaling, optimizer.step) == (None, own_step)


def test_a_compiled_forward_pass_counts_its_graphs_and_is_taken_away_again():
    class Broken(nn.Module):
        def forward(self, x):
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2

    model = Broken()
    compiled = Compiled(model, backend=lambda graph, _: graph.forward)
    with compiled.in_place():
        assert model(torch.ones(2)).tolist() == [4, 4]
    assert (compiled.num_graphs, compiled.failure) == (2, "")
    assert "forward" not in vars(model)


def test_a_forward_pass_that_cannot_be_compiled_runs_as_it_is_and_says_why():
    def no_compiler(graph, inputs):
        raise RuntimeError("no C++ compiler found\nmore")

    model = nn.Linear(2, 2)
    compiled = Compiled(model, backend=no_compiler)
    with compiled.in_place():
        assert model(torch.ones(1, 2)).shape == (1, 2)
    assert "no C++ compiler found" in compiled.failure
    assert "\n" not in compiled.failure


def dealt(session, sizes=(8,), num_shards=2, data=None):
    plan = plan_step(1, sizes, session.rank, session.world_size, num_shards)
    batches = [
        data or (torch.ones(micro.num_samples, 3), {"y": torch.ones(micro.num_samples)}) for micro in plan.micro_steps
    ]
    return SimpleNamespace(largest=(plan, batches), fold=None)


def test_shards_of_one_process_are_first_run_as_one_and_then_batches_are_joined():
    session = session_of(nn.Linear(2, 2), config=RunConfig(shards=2))
    windows = dealt(session)
    (change,) = micro_batches(session, windows)
    assert (change.name, change.how) == ("micro-batches of 8 samples, now 4", "shards=1")
    assert change.alters.startswith("the order of sums")
    with change.made():
        plan, data = windows.fold.fold([windows.largest])
    assert (plan.sizes, [micro.num_samples for micro in plan.micro_steps]) == ((8,), [8])
    assert (data[0][0].shape, data[0][1]["y"].shape) == ((8, 3), (8,))
    assert windows.fold is None
    larger = change.larger(0.001)
    assert (larger.name, larger.how) == ("micro-batches of 16 samples, now 4", "batch_size=16, shards=1")
    assert larger.alters.startswith("the training (2 batches become one step)")
    assert change.larger(10.0) is None, "its steps would take long"


def test_each_of_several_processes_keeps_its_shards_in_larger_batches():
    session = session_of(nn.Linear(2, 2), config=RunConfig(shards=4), rank=1, world_size=2)
    windows = dealt(session, num_shards=4)
    (change,) = micro_batches(session, windows)
    assert (change.name, change.how) == ("micro-batches of 4 samples, now 2", "batch_size=16")
    with change.made():
        plan, data = windows.fold.fold([windows.largest] * 2)
    assert (plan.sizes, [micro.shard for micro in plan.micro_steps]) == ((16,), [2, 3])
    assert [len(inputs) for inputs, _ in data] == [4, 4]
    small = dealt(session, sizes=(3,), num_shards=4).largest
    with change.made():
        assert windows.fold.fold([windows.largest, small]) == small, "shards without samples stay so, on every rank"


def test_a_micro_batch_that_would_not_fit_is_not_tried_and_the_largest_that_fits_is_said(monkeypatch):
    torch.ones(1 << 27)  # whatever the process has needed, and given back, before
    session = session_of(nn.Linear(2, 2), config=RunConfig(shards=2))
    (change,) = micro_batches(session, dealt(session))
    kept = []
    with change.made():
        kept.append(torch.ones(1 << 26))  # 256 MiB, 64 MiB a sample
    assert "a sample, so about " in change.remark()
    assert change.larger(0.001) is not None
    monkeypatch.setattr("lockstep.tuning.micro_batches.free_bytes", lambda: 1 << 28)
    assert change.larger(0.001) is None


def test_batches_of_more_than_tensors_are_left_out_and_named():
    session = session_of(nn.Linear(2, 2))
    (change,) = micro_batches(session, dealt(session, data=["a", "b"]))
    assert change.why_not == "batches hold more than tensors"


def test_what_gains_is_proposed_with_the_words_to_write_and_the_rest_is_named():
    tried = {
        "name": "4 threads a process",
        "how": "--threads 4",
        "why_not": "",
        "alters": "the last bits",
        "remark": "",
        "first_s": 0.1,
        "speedups": [1.5, 1.4, 1.3],
        "gains": True,
    }
    fails = {**tried, "name": "compile", "speedups": [0.9], "gains": False, "remark": "in 2 graphs", "first_s": 8.24}
    out = {**tried, "name": "16-mixed", "speedups": [], "gains": False, "why_not": "this processor emulates float16"}
    proposed, rest, left_out = apart({"apart": [tried, fails, out]})
    assert proposed == (
        "separately, 4 threads a process: 1.40 times as fast, confirmed; alters the last bits; for a new run: --threads 4"
    )
    assert rest == (
        "no clear gain from what alters the answer: compile (0.90 times as fast; first steps 8.2 s longer; in 2 graphs)"
    )
    assert left_out == "left out: 16-mixed (this processor emulates float16)"
    assert apart({"apart": []}) == []
