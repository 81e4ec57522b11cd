"""``lockstep run``: a script, on several processes of this machine, or of several."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from lockstep.cli.nodes import NODE_OPTIONS, node_options
from lockstep.cli.torchrun import check_redirects, check_tee, dashed, torchrun_options
from lockstep.config import ALLOWABLE, BACKENDS, DEVICES, NAN_POLICIES, PRECISIONS, PROGRESS_STYLES, STRATEGIES, TRACE_LEVELS
from lockstep.errors import ConfigError
from lockstep.launch.binding import BINDINGS
from lockstep.launch.nodes import plan_nodes
from lockstep.launch.program import PASS_LOCAL_RANK, SPAWNS
from lockstep.launch.script import run_script

_GROUPS = {
    "Processes": (
        "nproc_per_node",
        "is_module",
        "threads",
        "device",
        "devices_per_process",
        "backend",
        "init_method",
        "timeout_s",
        "max_restarts",
        "bind",
        "pass_local_rank",
        "spawns",
    ),
    "Several machines": NODE_OPTIONS,
    "Training (only for scripts that call lockstep.join())": (
        "strategy",
        "precision",
        "shards",
        "accumulate",
        "seed",
        "on_nan",
        "run_dir",
        "progress",
        "workers",
        "trace",
        "trace_until",
    ),
    "Checkpoints (for the same scripts)": ("checkpoint_every", "keep", "fresh", "allow"),
    "Output": ("log_dir", "tee", "attach"),
    "As torchrun and torch.distributed.launch have them": (
        "is_executable",
        "use_env",
        "redirects",
        "tee_streams",
        "standalone",
    ),
}

_EPILOG = """\b
Examples:
  lockstep run train.py --epochs 3                    a process for each GPU, or one
  lockstep run --nproc-per-node 2 train.py            two processes
  lockstep run --nproc-per-node 2 --shards 8 train.py the answer of 8 shards, on any number of processes up to 8
  lockstep run --nproc-per-node 4 --log-dir logs -m package.train
  lockstep run --nproc-per-node 2 --attach 1 train.py breakpoint() works on rank 1
  lockstep run --nproc-per-node 2 --max-restarts 3 train.py
  lockstep run --nnodes 2 --node-rank 0 --master-addr one train.py         the same on the other, with --node-rank 1
  lockstep run --nnodes 1:4 --rdzv-endpoint one:29500 --shards 8 train.py  the same on each that is there

Scripts written for torchrun or torch.distributed.launch run unchanged. (Those that meet through env:// open PyTorch's
TCP store, which listens on all network interfaces; scripts that call lockstep.join() open no port to the network.)

If a process fails, all of them are ended within seconds and the first failure is shown whole. With --max-restarts they
then start again, from the newest checkpoint of the run if the script calls lockstep.join(); not after Ctrl-C, and not
after an error that would only come again. A process that somebody stopped (kill -STOP) has failed when the others have
waited for it for half of --timeout.

SIGTERM or SIGUSR1 to this command asks a training run to make room: it ends its step, writes a checkpoint, and ends with
status 75, "start me again" (74: the checkpoint could not be written). A second signal ends it at once.

The exit status is 0 if all went well, 2 if nothing was started, 75 as above, 130 after Ctrl-C, 143 after a SIGTERM that
nothing was saved after, else that of the first failure: the status that the script exited with, 128 plus the number of
the signal that killed it, or 1.
"""


class _GroupedHelp(click.Command):
    """Options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))}
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n" + _EPILOG.removeprefix("\b\n"))


def _names(valid: Iterable[str]) -> str:
    return f"[{'|'.join(valid)}]"


@click.command(
    "run",
    cls=_GroupedHelp,
    context_settings={
        "allow_interspersed_args": False,
        "max_content_width": 120,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": dashed,  # torchrun takes --nproc_per_node as well
    },
    options_metavar="[OPTIONS]",
)
@click.option(
    "--nproc-per-node",
    "--nproc",
    "nproc_per_node",
    metavar="N",
    help="Number of processes, or auto, cpu, gpu. Default: one for each CUDA GPU, else one.",
)
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option(
    "--threads", type=int, metavar="N", help="Threads of each process. Default: OMP_NUM_THREADS, else the cores, divided."
)
@click.option("--device", metavar=_names(DEVICES), help="Where to train. Default: a GPU where there is one.")
@click.option(
    "--devices-per-process",
    type=int,
    metavar="N",
    help="Devices that each process drives. Default: one; with strategy dp, all GPUs.",
)
@click.option(
    "--backend",
    metavar=_names(BACKENDS),
    help="Library for communication between processes. Default: nccl where each process has its own GPU, else gloo.",
)
@click.option(
    "--init-method",
    metavar="URL",
    help="Where processes meet: tcp://HOST:PORT, file:///PATH, env://. Default: a private file.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    metavar="SECONDS",
    help="How long a process may wait for the others in a collective. Default: 600.",
)
@click.option(
    "--max-restarts",
    type=int,
    default=0,
    metavar="N",
    help="How often all processes are started again, at most, when one has failed. Default: 0.",
)
@click.option(
    "--bind",
    default="none",
    metavar=_names(BINDINGS),
    help="Bind each process, and its loader workers, to cores of its own or to a NUMA node. Default: none.",
)
@click.option(
    "--pass-local-rank",
    default="auto",
    metavar=_names(PASS_LOCAL_RANK),
    help="Give the script its local rank as an argument. auto: if its source defines one of these options.",
)
@click.option(
    "--spawns",
    default="auto",
    metavar=_names(SPAWNS),
    help="Whether the script starts its processes itself (mp.spawn): it then runs once, as under python. auto: as its "
    "source says.",
)
@click.option(
    "--strategy",
    metavar=_names(STRATEGIES),
    help="How gradients are synchronized. Default: auto, which is exact with --shards, else ddp, or single for one process.",
)
@click.option("--precision", metavar=_names(PRECISIONS), help="Formats of weights and passes: see docs/precision.md.")
@click.option(
    "--shards",
    type=int,
    metavar="V",
    help="Parts that every global batch is cut into: runs with the same V "
    "give the same answer. Default: the number of processes.",
)
@click.option("--accumulate", type=int, metavar="K", help="Consecutive global batches that make one step. Default: 1.")
@click.option(
    "--seed", type=int, metavar="N", help="Root of all random streams. Default: the script's torch.manual_seed(), else 0."
)
@click.option(
    "--on-nan",
    metavar=_names(NAN_POLICIES),
    help="What to do when a loss is NaN: stop with an error, warn, or ignore it. Default: stop.",
)
@click.option("--run-dir", metavar="DIR", help="Directory of the run. Default: the next free runs/SCRIPT-N.")
@click.option("--progress", metavar=_names(PROGRESS_STYLES), help="How to show progress.")
@click.option("--workers", type=int, metavar="N", help="Loader workers of each process. Default: as the script says.")
@click.option("--trace", metavar=_names(TRACE_LEVELS), help="Write digests of every step; slow. See lockstep verify.")
@click.option("--trace-until", type=int, metavar="STEP", help="End the script after this step, with a trace.")
@click.option(
    "--checkpoint-every",
    metavar="STEPS|TIME",
    help="Save the run's state every so many steps, or every 30s, 10m, 2h; or off. Default: 10m, and at the end.",
)
@click.option("--keep", type=int, metavar="N", help="How many checkpoints stay. Default: 2.")
@click.option(
    "--fresh",
    is_flag=True,
    default=None,
    help="Start a new run. Default: resume the newest interrupted run of the same command.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar=_names(ALLOWABLE),
    help="What may differ from the interrupted run, although the answer may then too. May be given again.",
)
@click.option(
    "--log-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the output of rank R to DIR/rank-R.log instead of the terminal.",
)
@click.option("--tee", is_flag=True, help="Show each line with its rank; with --log-dir: as well as in the file.")
@click.option("--attach", type=int, metavar="RANK", help="Give this rank the terminal, so that breakpoint() works.")
@node_options
@torchrun_options
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str,
    args: tuple[str, ...],
    nproc_per_node: str | None,
    is_module: bool,
    max_restarts: int,
    bind: str,
    pass_local_rank: str,
    spawns: str,
    is_executable: bool,
    use_env: bool,
    redirects: str | None,
    tee_streams: str | None,
    log_dir: Path | None,
    tee: bool,
    attach: int | None,
    nnodes: str | None,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    rdzv_endpoint: str | None,
    rdzv_id: str | None,
    rdzv_backend: str | None,
    rdzv_conf: str | None,
    **settings: Any,
) -> int:
    """Run SCRIPT with ARGS on several processes of this machine, or of several machines.

    Options go before SCRIPT; all that follows it is the script's own. A setting given here and, differently, in the
    script's lockstep.join() is an error.
    """
    if pass_local_rank not in PASS_LOCAL_RANK:
        raise ConfigError(f"--pass-local-rank {pass_local_rank}: choose one of {', '.join(PASS_LOCAL_RANK)}")
    if spawns not in SPAWNS:
        raise ConfigError(f"--spawns {spawns}: choose one of {', '.join(SPAWNS)}")
    check_redirects(redirects, log_dir)
    if tee:
        check_tee(script)
    nodes = plan_nodes(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        endpoint=rdzv_endpoint,
        run_id=rdzv_id,
        backend=rdzv_backend,
        conf=rdzv_conf,
    )
    interruption = run_script(
        script,
        args,
        is_module=is_module,
        nproc=nproc_per_node,
        settings={name: value for name, value in settings.items() if value is not None and value != ()},
        log_dir=log_dir,
        tee=tee or tee_streams == "3",
        attach=attach,
        pass_local_rank="none" if use_env else pass_local_rank,
        spawns=spawns,
        is_executable=is_executable,
        max_restarts=max_restarts,
        bind=bind,
        nodes=nodes,
        master_port=master_port,
    )
    if interruption is None:
        return 0
    click.echo(interruption.message, err=True)
    return interruption.status
