"""An interrupted run is resumed by a script or command that differs: refused, with the difference
named, or allowed."""

import copy
import dataclasses
import inspect
import re

import pytest
import torch
from laboratory import PLAIN, content_of
from switches import SWITCHES, switch_all

from lockstep._prepare.registry import adapter_of
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.recovery.software import numerics

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]

# What differs, as arguments of the script and settings of the command; a value that the error
# contains; and what would allow the difference.
DIFFERENCES = {
    "model": (["hidden=9"], {}, "`0.weight of shape (9, 6), float32`", ""),
    "optimizer": (["optimizer=RAdam"], {}, "optimizer (RAdam)", ""),
    "learning rate": (["lr=0.02"], {}, "lr=0.02 (was 0.01)", "optimizer"),
    "schedule": (["schedule=0"], {}, "schedule (ExponentialLR)", ""),
    "data set": (["samples=48"], {}, "of length 48`", "data"),
    "global batch": (["batch=4"], {}, "`batch_size=4, drop_last=False`", "data"),
    "seed": ([], {"seed": 7}, "seed is 7", ""),
    "seed of the script's own": (["script_seed=7"], {}, "torch.manual_seed(7)", ""),
    "accumulate": ([], {"accumulate": 2}, "accumulate is 2", ""),
    "precision": ([], {"precision": "bf16-mixed"}, "precision is 'bf16-mixed'", ""),
    "shards": ([], {"shards": 3}, "shards is 3", "shards"),
    "threads": ([], {"threads": 2}, "threads is 2", "threads"),
    "strategy": ([], {"strategy": "ddp"}, "strategy is 'ddp'", ""),
    "a numeric setting": (["switch=deterministic_algorithms"], {}, "deterministic_algorithms is True", "numerics"),
}


# The first two can be set only where PyTorch was built for CUDA, and the third where opt_einsum is
# installed; the next ones are set together with another; the last makes another model.
NOT_SWITCHED = {"cuda.preferred_blas_library", "cuda.preferred_linalg_library", "opt_einsum.strategy"}
NOT_SWITCHED |= {f"cuda.matmul.allow_{dtype}_reduced_precision_reduction_split_k" for dtype in ("bf16", "fp16")}
NOT_SWITCHED |= {"deterministic_warn_only", "default_dtype"}
# Names of groups; older names of fp32_precision, and what it has above those that are compared;
# settings for ROCm, or that count with cudnn.benchmark alone.
NOT_COMPARED = {f"{group}.{name}" for group in ("cudnn", "mkldnn") for name in ("conv", "rnn", "matmul")}
NOT_COMPARED |= {"cuda.matmul.allow_tf32", "cudnn.allow_tf32", "mkldnn.allow_tf32", "cudnn.fp32_precision"}
NOT_COMPARED |= {"mkldnn.fp32_precision", "mkldnn.is_available", "cudnn.benchmark_limit", "cuda.preferred_rocm_fa_library"}


def settings_of_pytorch():
    """The names of its numeric settings, as far as PyTorch lists them."""
    backends = torch.backends
    found = {f"cuda.{name}" for name in dir(backends.cuda) if name.startswith(("allow_", "enable_", "preferred_"))}
    source = inspect.getsource(type(backends.cuda.matmul))
    found |= {f"cuda.matmul.{name}" for name in re.findall(r'name == "(\w+)"', source)}
    for group in ("cudnn", "mkldnn"):
        found |= {f"{group}.{name}" for name in vars(type(getattr(backends, group))) if not name.startswith("__")}
    return found


def test_all_numeric_settings_of_pytorch_are_compared_and_tried_below():
    compared = {re.sub("^cudnn_", "cudnn.", name) for name in numerics()}
    assert settings_of_pytorch() - compared == NOT_COMPARED & settings_of_pytorch()
    assert set(numerics()) == {*SWITCHES, *NOT_SWITCHED}


def test_settings_by_pytorchs_older_interface_are_seen_too():
    before, precision = numerics(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert {name for name, value in numerics().items() if value != before[name]} == {
            "cuda.matmul.fp32_precision",
            "mkldnn.matmul.fp32_precision",
        }
    finally:
        torch.set_float32_matmul_precision(precision)
    assert numerics() == before


def refused(lab, name, nproc):
    args, settings, words, allowable = DIFFERENCES[name]
    before = content_of(lab.run_dir)
    ended = lab.run(PLAIN, *args, nproc=nproc, **settings)
    assert ended.status == 1, ended
    assert ended.words is None, ended
    assert words in ended.err, ended
    assert str(lab.run_dir) in ended.err, ended
    assert (f"--allow {allowable}" in ended.err) if allowable else "--allow" not in ended.err, ended
    assert content_of(lab.run_dir) == before, ended


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_refused_and_named_and_the_run_stays_as_it_is(lab, interrupted, name):
    interrupted(lab.run_dir)
    refused(lab, name, nproc=2 if name in ("learning rate", "strategy", "seed") else 1)


def test_each_setting_that_may_change_numbers_is_compared(crew):
    [changed] = crew(1, switch_all)
    assert changed == [{name: value} for name, (_, value) in SWITCHES.items()]


GROWING = """
    import os, torch, lockstep
    from striking import arm, say_last_words, strike
    from torch.utils.data import DataLoader, Sampler, TensorDataset

    class Growing(Sampler):
        epoch = 0
        def set_epoch(self, epoch): self.epoch = epoch
        def __len__(self): return 4 + self.epoch
        def __iter__(self): return iter([[i, i + 1] for i in range(len(self))])

    team = lockstep.join()
    arm(team)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 1)), batch_sampler=Growing())
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(3):
        for batch in loader:
            for (x,) in batch.shards:
                team.backward(model(x).square().mean())
            optimizer.step(); optimizer.zero_grad()
            strike(team)
    say_last_words(team, model)
"""


def test_a_run_whose_passes_grow_resumes_from_its_own_checkpoint(lab):
    whole = lab.run(GROWING, run_dir="whole")
    assert whole.words["step"] == 4 + 5 + 6, whole
    fault = {"at": "step", "number": 7, "what": "SIGTERM", "to": "me"}
    assert lab.run(GROWING, fault=fault).status == 75
    again = lab.run(GROWING, nproc=2)
    assert again.words == whole.words, again
    assert lab.resumes() == [7]


@pytest.mark.parametrize("name", ["learning rate", "global batch", "a numeric setting"])
def test_what_is_allowed_goes_on_from_the_same_step(lab, interrupted, undisturbed, name):
    interrupted(lab.run_dir)
    newest = int(lab.names()[0].removeprefix("step-"))
    args, settings, _, allowable = DIFFERENCES[name]
    ended = lab.run(PLAIN, *args, allow=[allowable], **settings)
    assert ended.status == 0, ended
    assert lab.resumes() == [newest], ended
    if name != "a numeric setting":  # which leads to the same answer here
        assert ended.words["digest"] != undisturbed()["digest"], ended


def test_what_is_allowed_allows_nothing_else(lab, interrupted):
    interrupted(lab.run_dir)
    ended = lab.run(PLAIN, "lr=0.02", "samples=48", allow=["optimizer"])
    assert ended.status == 1, ended
    assert "of length 48`" in ended.err, ended
    ended = lab.run(PLAIN, "lr=0.02", seed=7, allow=["optimizer"])
    assert ended.status == 1, ended
    assert "seed is 7" in ended.err, ended


def test_an_allowed_learning_rate_is_that_of_all_later_steps(lab, interrupted):
    interrupted(lab.run_dir)
    ended = lab.run(PLAIN, "lr=0.02", allow=["optimizer"])
    [newest] = lab.resumes(lab.run_dir)
    expected = [0.02 * 0.95**step for step in range(newest + 1, 16)]
    assert ended.listed("rates") == pytest.approx(expected), ended


lrs = torch.optim.lr_scheduler
SCHEDULES = {
    "exponential": lambda o, lr: lrs.ExponentialLR(o, 0.9),
    "step": lambda o, lr: lrs.StepLR(o, 3, 0.5),
    "lambda": lambda o, lr: lrs.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o, lr: lrs.CosineAnnealingLR(o, 20),
    "warm-up": lambda o, lr: lrs.LinearLR(o, 0.25, total_iters=8),
    "one cycle": lambda o, lr: lrs.OneCycleLR(o, max_lr=10 * lr, total_steps=20, cycle_momentum=False),
    "chained": lambda o, lr: lrs.ChainedScheduler([lrs.LinearLR(o, 0.25, total_iters=4), lrs.ExponentialLR(o, 0.9)]),
    "one after the other": lambda o, lr: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.25, total_iters=4), lrs.ExponentialLR(o, 0.9)], milestones=[4]
    ),
}


# (Not of a one-cycle schedule that is made later: it has rates of its own.)
CASES = [(name, is_made_first) for name in SCHEDULES for is_made_first in (True, False)]


@pytest.mark.parametrize(("name", "is_made_first"), [case for case in CASES if case != ("one cycle", False)])
def test_with_any_schedule_an_allowed_rate_runs_as_if_begun_with(name, is_made_first, monkeypatch, tmp_path):
    # torch sets it at an optimizer's first step, for good
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def made(lr):
        groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": lr * factor} for factor in (1, 3)]
        optimizer = torch.optim.SGD(groups, lr=lr)
        if is_made_first:
            schedule = SCHEDULES[name](optimizer, lr)
            return [adapter_of(optimizer), adapter_of(schedule)]
        content = adapter_of(optimizer)
        return [content, adapter_of(SCHEDULES[name](optimizer, lr))]

    def course(things, num_steps):
        optimizer, schedule = (content.target for content in things)
        found = []
        for _ in range(num_steps):
            found.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            schedule.step()
        return found

    old, new = made(0.01), made(0.02)
    course(old, 7)
    states = [copy.deepcopy(content.state_dict()) for content in old]
    for before, state, after in zip(old, states, new, strict=True):
        after.load_state_dict(state)
        was, is_now = before.options_at_birth, after.options_at_birth
        names = [key for key in is_now if was.get(key) != is_now[key]]
        after.apply_options(names, {key: repr(value) for key, value in was.items()})
    expected = made(0.02)
    assert course(new, 10) == [pytest.approx(rates) for rates in course(expected, 17)[7:]]


def test_a_checkpoint_that_lacks_a_setting_since_an_older_version_wrote_it_is_resumed_from(lab, interrupted, undisturbed):
    interrupted(lab.run_dir)
    for name in lab.names():
        directory = lab.run_dir / "checkpoints" / name
        manifest = Manifest.read(directory)
        known = {key: value for key, value in manifest.birth.items() if key not in ("threads", "script_seed")}
        dataclasses.replace(manifest, birth=known, numerics={"cudnn_benchmark": False}).write(directory)
    ended = lab.run(PLAIN, "switch=mkldnn.enabled")
    assert ended.status == 0, ended
    assert ended.words["digest"] == undisturbed()["digest"], ended


IN_A_CONTEXT = """
    import sys, torch, lockstep
    from torch.nn.attention import SDPBackend, sdpa_kernel

    team = lockstep.join()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, [torch.ones(2, 1)] * 3)
    for epoch in team.epochs(int(sys.argv[1])):
        with sdpa_kernel(SDPBackend.MATH):
            for batch in loader:
                for x in batch.shards:
                    team.backward(model(x).square().mean())
                optimizer.step(); optimizer.zero_grad()
                if sys.argv[2:] == [str(team.step)]:
                    raise SystemExit(3)
    print("trained to", team.step)
"""


def test_a_setting_that_is_in_force_within_a_pass_alone_is_no_difference(lab):
    assert lab.run(IN_A_CONTEXT, "3", "5", checkpoint_every=1).status == 3
    for epochs in (3, 3, 4):  # the rest, nothing, and more of a finished run
        ended = lab.run(IN_A_CONTEXT, str(epochs))
        assert ended.status == 0, ended
        assert f"trained to {3 * epochs}" in ended.out
