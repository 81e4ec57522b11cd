"""The stages, in the order of what would be lost most if the time ran out: first whether anything
trains, then what needs several GPUs, then what one GPU can show.

All limits together are at most 30 minutes on 8 GPUs, and 12 on one. If a machine is slower than
that (a network file system), pass ``--limit``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from gpu.series import MACHINE
from gpu.stage import ROOT, Setting, Stage, check

LOCKSTEP = (sys.executable, "-m", "lockstep._cli.main")


def doctor(setting: Setting, found: Path) -> list[str]:
    return [*LOCKSTEP, "doctor", "--device", setting.device_of_runs, "--nproc-per-node", str(setting.num_devices)]


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
    # Not compiled, which would take minutes. Without options, the script compares all its loops.
    size = ["--batch", "128", "--rounds", "3", "--steps", "10"]
    if setting.is_rehearsal:
        size = ["--quick", "--device", "cpu", "--rounds", "1"]
    nproc = min(2, setting.num_devices) if setting.is_rehearsal else setting.num_devices
    contenders = "by-hand,lockstep,ddp,V=W" if nproc > 1 else "by-hand,lockstep"
    options = ["--compiler", "none", "--contenders", contenders, "--nproc", str(nproc)]
    return [sys.executable, str(ROOT / "benchmarks" / "resnet50.py"), *options, *size]


def seconds_at_most(stages: Iterable[Stage], num_devices: int, *, on_hosts: bool = False) -> float:
    """The limits of all stages that run on so many devices, and of the look at the machine before
    them.

    Args:
        stages: all of them.
        num_devices: of one machine.
        on_hosts: whether there are several machines.
    """
    run = [stage for stage in stages if stage.least_devices <= num_devices and (on_hosts or not stage.needs_hosts)]
    return MACHINE.limit_s + sum(stage.limit_s for stage in run)


ON_SEVERAL = ("--num-devices", "{num_devices}")
ON_ONE = "on one, `tree` compares two processes that share it"

STAGES = (
    Stage(
        name="doctor",
        shows="lockstep's own checks of this machine pass, with the speed of the exchange between its GPUs",
        command=doctor,
        limit_s=40,
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
        limit_s=45,
        causes=(
            "no context on the GPU: another process has it (nvidia-smi), or it is in exclusive mode",
            "CUDA was initialized before the fork: the fork server must not touch it",
            "a kernel that PyTorch lacks for this GPU: see the versions in the report",
        ),
        read=("src/lockstep/_launch/server.py", "src/lockstep/_world/devices.py", "examples/transformer.py"),
    ),
    Stage(
        name="worlds",
        shows="the same digest on 1, 2, 4 and 8 GPUs over NCCL, of a CNN and of a GPT",
        command=check("worlds", *ON_SEVERAL),
        limit_s=180,
        least_devices=2,
        instead=ON_ONE,
        causes=(
            "NCCL finds no way between the GPUs: NCCL_DEBUG=INFO prints which one it tries",
            "the digests differ: GPUs of different products, or a sum that depends on the number of ranks",
            "only the digest of one process differs: a kernel is not deterministic (stage `bits` names it)",
        ),
        read=("src/lockstep/_world/comm/group.py", "src/lockstep/_sync/ordered.py", "docs/contract.md"),
        only_on_a_card="NCCL",
    ),
    Stage(
        name="exact",
        shows="time of a step and memory of a GPU, next to ddp; GB/s of the exchange, next to an all-reduce",
        command=check("beside_ddp", *ON_SEVERAL),
        limit_s=150,
        least_devices=2,
        causes=(
            "out of memory: NCCL's buffers for messages between pairs of GPUs (NCCL_MAX_P2P_NCHANNELS=4 has fewer)",
            "an exchange hangs: NCCL_DEBUG=INFO prints the links that it tries",
        ),
        read=("tools/gpu/checks/beside_ddp.py", "src/lockstep/_sync/ordered.py"),
        only_on_a_card="NCCL, its buffers and all times",
    ),
    Stage(
        name="fsdp",
        shows="the same digest with fsdp on 1, 2 and 4 GPUs over NCCL",
        command=check("worlds", *ON_SEVERAL, "--strategy", "fsdp", "--most", "4"),
        limit_s=120,
        least_devices=2,
        causes=(
            "it hangs: an all-gather of PyTorch's and an exchange of lockstep's in different orders on two ranks",
            "the digests differ, and those of `worlds` do not: the slices, or a missing wait between streams",
        ),
        read=("src/lockstep/_sync/fsdp.py", "src/lockstep/_sync/slice_exchange.py", "docs/fsdp.md"),
        only_on_a_card="NCCL",
    ),
    Stage(
        name="resume",
        shows="a run whose rank is killed resumes on half the GPUs with the same digest; one process on each GPU",
        command=check("resume", *ON_SEVERAL),
        limit_s=90,
        least_devices=2,
        causes=(
            "it hangs after the kill: NCCL waits for a process that has exited",
            "the digests differ: something that the checkpoint lacks",
        ),
        read=("src/lockstep/_state/checkpoint", "src/lockstep/_launch/local.py", "docs/recovery.md"),
        only_on_a_card="NCCL, and which GPUs a process uses",
    ),
    Stage(
        name="subtrees",
        shows="the same digest for V = 6 on 1, 2 and 4 GPUs, where a rank sends several subtrees",
        command=check("worlds", *ON_SEVERAL, "--shards", "6", "--most", "4"),
        limit_s=90,
        least_devices=2,
        causes=("the digests differ, and those of `worlds` do not: rows of several subtrees in one message",),
        read=("src/lockstep/_sync/ordered.py", "src/lockstep/_plan/tree.py"),
        only_on_a_card="NCCL",
    ),
    Stage(
        name="ddp",
        shows="ddp trains with a GPU for each rank: the same weights on all ranks, and losses close to those of exact",
        command=check("close", *ON_SEVERAL),
        limit_s=60,
        least_devices=2,
        causes=("losses of ddp are not close: its gradients are means over other numbers of samples",),
        read=("src/lockstep/_sync/ddp.py", "docs/strategies.md"),
        only_on_a_card="NCCL",
    ),
    Stage(
        name="ends",
        shows="an error on one rank, and a rank that sleeps past --timeout, end the run in seconds with a Python error",
        command=check("ends", *ON_SEVERAL),
        limit_s=150,
        least_devices=2,
        causes=(
            "it hangs after the error: NCCL's communicators are destroyed before the other ranks get the error",
            "SIGABRT: NCCL's watchdog ended a process before Gloo's timeout was an error",
        ),
        read=("src/lockstep/_world/comm/group.py", "docs/debug-a-hang.md"),
        only_on_a_card="NCCL's watchdog, and the end of its communicators",
    ),
    Stage(
        name="tree",
        shows="the same digest for V = 2 and 4, twice on one process and on two that share a GPU; losses close to the CPU's",
        command=check("tree"),
        limit_s=75,
        causes=(
            "two runs on one process differ: a kernel is not deterministic (stage `bits` names it)",
            "only two processes differ: the sum over shards, or a missing wait between streams (stage `sanitizer`)",
            "the samples differ from the CPU's: the plan depends on the device, which it must not",
        ),
        read=("src/lockstep/_sync/exact.py", "src/lockstep/_data/streams.py", "docs/contract.md"),
        only_on_a_card="the device's own kernels and random draws",
    ),
    Stage(
        name="product",
        shows="a product on the GPU before join() does not make those after it an error",
        command=check("before_join"),
        limit_s=30,
        causes=("PyTorch looks for CUBLAS_WORKSPACE_CONFIG at the first product only: set it before the script starts",),
        read=("src/lockstep/_world/kernels.py", "docs/gpu.md"),
        only_on_a_card="cuBLAS",
    ),
    Stage(
        name="tests",
        shows="the tests marked cuda pass",
        command=tests,
        limit_s=180,
        distributions=("pytest", "pytest-timeout", "hypothesis"),
        causes=(
            "the first failure counts: later ones may follow from it",
            "a tolerance that was guessed without a GPU: see by how much",
        ),
        read=("tests/cuda/test_on_a_gpu.py", "tests/cuda/test_precision_on_a_gpu.py", "tests/cuda/test_several_gpus.py"),
        only_on_a_card="all of it: the tests are only collected",
    ),
    Stage(
        name="bits",
        shows="two runs of a CNN and of a GPT are the same; which operations differ, and which layers raise",
        command=check("bits"),
        limit_s=90,
        causes=(
            "an operation has no deterministic kernel, or none on this GPU: it is named in the output",
            "only lockstep's loop differs, PyTorch's own does not: a wait is missing (stage `sanitizer`)",
        ),
        read=("tools/gpu/checks/operations.py", "tools/gpu/checks/layers.py", "docs/gpu.md"),
        only_on_a_card="kernels that are not deterministic",
    ),
    Stage(
        name="sanitizer",
        shows="PyTorch's sanitizer finds no access that nothing orders, in a training with checkpoints",
        command=check("sanitized"),
        limit_s=45,
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
        limit_s=40,
        causes=("a value is read on the host in every step: the lines are in the output",),
        read=("src/lockstep/_data/values.py", "tests/simulated/test_counts.py"),
        only_on_a_card="counting waits (the simulation does)",
    ),
    Stage(
        name="profile",
        shows="what a step launches, and how long each of 33 steps takes, in a plain loop and at V = 1 and 2",
        command=check("profiled", "--traces", "{out}"),
        limit_s=55,
        causes=("the profiler cannot open CUPTI: in a container it needs the driver's permission, see the output",),
        read=("tools/gpu/checks/profiled.py",),
        only_on_a_card="the device's times",
    ),
    Stage(
        name="resnet50",
        shows="ResNet-50 in images per second, compared with a hand-written loop and with DDP, none compiled",
        command=resnet50,
        limit_s=90,
        causes=("out of memory, of another process too: benchmarks/resnet50.py --batch 64 needs less",),
        read=("benchmarks/resnet50.py", "benchmarks/workers/resnet_loop.py"),
        only_on_a_card="figures that mean something",
    ),
    Stage(
        name="hosts",
        shows="on several machines: the doctor, the same digest as on one, bytes that each network interface sent",
        command=check(
            "hosts",
            *ON_SEVERAL,
            "--nnodes={nnodes}",
            "--node-rank={node_rank}",
            "--master-addr={master_addr}",
            "--master-port={master_port}",
            "--out={out}",
        ),
        limit_s=240,
        needs_hosts=True,
        causes=(
            "the other machine was not started within two minutes, or cannot reach --master-addr and its port",
            "the machines do not see this clone in the same directory",
            "NCCL took the wrong interface: set NCCL_SOCKET_IFNAME, and read the lines of its log in the report",
        ),
        read=("docs/clusters.md", "docs/rendezvous.md", "tools/gpu/checks/hosts.py"),
        only_on_a_card="NCCL and real networks",
    ),
)
