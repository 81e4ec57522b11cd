"""The stages, in their order: each depends on the success of the stages before it."""

from __future__ import annotations

import sys
from pathlib import Path

from gpu.stage import ROOT, Setting, Stage, check

LOCKSTEP = (sys.executable, "-m", "lockstep._cli.main")


def doctor(setting: Setting, found: Path) -> list[str]:
    return [*LOCKSTEP, "doctor", "--device", setting.device_of_runs, "--nproc-per-node", "1"]


def epoch(setting: Setting, found: Path) -> list[str]:
    script = str(ROOT / "examples" / "transformer.py")
    return [*LOCKSTEP, "run", "--nproc-per-node", "1", "--device", setting.device_of_runs, script, "--epochs", "1"]


def tests(setting: Setting, found: Path) -> list[str]:
    # A warning of another version of PyTorch must not hide what a GPU does.
    options = [
        "-m",
        "cuda",
        "-W",
        "default",
        "-p",
        "no:cacheprovider",
        "--durations",
        "10",
        "--maxfail",
        "8",
        "--tb",
        "short",
    ]
    where = [str(ROOT / "tests" / name) for name in ("cuda", "data", "launch", "events")]
    mode = ["--collect-only", "-q"] if setting.is_rehearsal else ["-v", "--require-cuda"]
    root = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    return [sys.executable, "-m", "pytest", *root, *options, *mode, *where]


def resnet50(setting: Setting, found: Path) -> list[str]:
    size = ["--batch", "256", "--rounds", "5", "--steps", "10"]
    if setting.is_rehearsal:
        contenders = "by-hand,lockstep,parts,V=2,ddp,V=W"
        size = ["--quick", "--device", "cpu", "--rounds", "1", "--compiler", "none", "--contenders", contenders]
    nproc = min(2, setting.num_devices) if setting.is_rehearsal else setting.num_devices
    return [sys.executable, str(ROOT / "benchmarks" / "resnet50.py"), "--nproc", str(nproc), *size]


STAGES = (
    Stage(
        name="doctor",
        shows="lockstep's own checks of this machine pass",
        command=doctor,
        limit_s=90,
        causes=(
            "a limit of the container: /dev/shm, memory, open files (each finding has a remedy)",
            "the driver is older than what this build of PyTorch was made for: compare both in the report",
        ),
        read=("docs/doctor.md",),
    ),
    Stage(
        name="epoch",
        shows="an example trains for an epoch through `lockstep run`",
        command=epoch,
        limit_s=120,
        causes=(
            "no context on the GPU: another process has it (nvidia-smi), or it is in exclusive mode",
            "CUDA was initialized before the fork: the fork server must not touch it",
            "a kernel that PyTorch lacks for this GPU: see the versions in the report",
        ),
        read=("src/lockstep/_launch/server.py", "src/lockstep/_world/devices.py", "examples/transformer.py"),
    ),
    Stage(
        name="tree",
        shows="the same digest for V = 2 and 4, twice on one process and on two that share the GPU; losses close to the CPU's",
        command=check("tree"),
        limit_s=180,
        causes=(
            "two runs on one process differ: a kernel is not deterministic (stage `bits` names it)",
            "only two processes differ: the sum over shards, or a missing wait between streams (stage `sanitizer`)",
            "the samples differ from the CPU's: the plan depends on the device, which it must not",
        ),
        read=("src/lockstep/_sync/exact.py", "src/lockstep/_data/streams.py", "docs/contract.md"),
        only_on_a_card="the device's own kernels and random draws",
    ),
    Stage(
        name="tests",
        shows="the tests marked cuda",
        command=tests,
        limit_s=420,
        distributions=("pytest", "pytest-timeout", "hypothesis"),
        causes=(
            "the first failure counts: later ones may follow from it",
            "a tolerance that was guessed without a card: see by how much",
        ),
        read=("tests/cuda/test_on_a_gpu.py", "tests/cuda/test_precision_on_a_gpu.py", "tests/cuda/test_several_gpus.py"),
        only_on_a_card="all of it: the tests are only collected",
    ),
    Stage(
        name="bits",
        shows="a CNN and a GPT twice, with and without deterministic algorithms, and which operations differ",
        command=check("bits"),
        limit_s=150,
        causes=(
            "an operation has no deterministic kernel, or none on this GPU: it is named in the output",
            "only lockstep's loop differs, PyTorch's own does not: a wait is missing (stage `sanitizer`)",
        ),
        read=("tools/gpu/checks/operations.py", "docs/gpu.md"),
        only_on_a_card="kernels that are not deterministic",
    ),
    Stage(
        name="sanitizer",
        shows="PyTorch's sanitizer finds no access that nothing orders, in a training with checkpoints",
        command=check("sanitized"),
        limit_s=180,
        environ=(("TORCH_CUDA_SANITIZER", "1"),),
        causes=(
            "CUDASanitizerErrors: two streams, and no wait between them; the stacks show both accesses",
            "the error is in PyTorch's own code, and a loop without lockstep has it as well: report it there",
        ),
        read=("src/lockstep/_sync/exact.py", "src/lockstep/_data/batch.py", "src/lockstep/_state/checkpoint"),
        only_on_a_card="the sanitizer, which knows CUDA only",
    ),
    Stage(
        name="waits",
        shows="the host waits for the device at most once a step, and not at all where nothing is read",
        command=check("waits"),
        limit_s=120,
        causes=("a value is read on the host in every step: the lines are in the output",),
        read=("src/lockstep/_data/values.py", "tests/simulated/test_counts.py"),
        only_on_a_card="counting waits (the simulation does)",
    ),
    Stage(
        name="profile",
        shows="what a step launches, and how long it takes, in a plain loop and at V = 1 and 2",
        command=check("profiled", "--traces", "{out}"),
        limit_s=180,
        causes=("the profiler cannot open CUPTI: in a container it needs the driver's permission, see the output",),
        read=("tools/gpu/checks/profiled.py",),
        only_on_a_card="the device's times",
    ),
    Stage(
        name="resnet50",
        shows="ResNet-50 in images per second, compared with the best hand-written loop",
        command=resnet50,
        limit_s=1500,
        causes=(
            "out of memory: benchmarks/resnet50.py --batch 64",
            "torch.compile finds no compiler: apt-get install gcc, or --compiler none",
        ),
        read=("benchmarks/resnet50.py", "benchmarks/workers/resnet_loop.py"),
        only_on_a_card="figures that mean something",
    ),
    Stage(
        name="worlds",
        shows="on several GPUs, an error on one rank ends the run in seconds; then the same digest on 1, 2, 4, 8",
        command=check("worlds", "--num-devices", "{num_devices}"),
        limit_s=300,
        least_devices=2,
        causes=(
            "it hangs after the error: NCCL's communicators are destroyed before the other ranks get the error",
            "NCCL finds no way between the GPUs: NCCL_DEBUG=INFO prints which one it tries",
            "the digests differ: GPUs of different products, or a sum that depends on the number of ranks",
        ),
        read=("src/lockstep/_world/comm/group.py", "src/lockstep/_sync/exact.py"),
        only_on_a_card="NCCL",
    ),
)
