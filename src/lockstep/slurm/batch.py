"""The text of a batch file, written so that a reader sees what it does and can change it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from lockstep.slurm.request import Request, check_text

_WIDTH = 34
"""Where comments behind an option begin."""


def output_of(request: Request) -> str:
    """Where the job's output goes, with Slurm's own letters in it: %j is the job, %A and %a array and task."""
    return request.output or f"{request.job_name}-{'%A_%a' if request.array else '%j'}.out"


def batch_text(request: Request, *, file: str, command: Sequence[str]) -> str:
    """The whole file.

    Args:
        request: the job.
        file: how the file is called.
        command: that wrote it.

    Raises:
        ConfigError: something of that cannot stand in a file.
    """
    for text in (file, *command):
        check_text(text)
    blocks = [
        _head(request, file, command),
        list(_options(request)),
        _settings(request),
        list(_start(request)),
        _end(request),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(request: Request, file: str, command: Sequence[str]) -> list[str]:
    hints = {
        f"sbatch {shlex.quote(file)}": "submits it, and says the number of the job",
        "squeue --me": "shows it",
        "scancel NUMBER": "ends it for good; what was trained until then is saved first",
        "its output": output_of(request),
    }
    width = max(map(len, hints))
    return [
        "#!/bin/bash",
        "# Written by:",
        f"#   {shlex.join(command)}",
        "# It is yours to change.",
        "#",
        *(f"#   {what:<{width}}   {hint}" for what, hint in hints.items()),
    ]


def _options(request: Request) -> Iterator[str]:
    each = request.settings.get("devices_per_process") or 1
    why_tasks = (
        "one process a node"
        if request.tasks == 1
        else f"processes on each: one for {'each GPU' if each == 1 else f'{each} GPUs'}"
        if request.tasks * each == request.num_gpus
        else "processes on each"
    )
    yield _option("job-name", request.job_name)
    yield _option("nodes", request.nodes)
    yield _option("ntasks-per-node", request.tasks, why_tasks)
    if request.gpus_per_node:
        yield _option("gpus-per-node", request.gpus_per_node, "each process sees all of them, and takes its own")
    if request.cpus_per_task:
        yield _option("cpus-per-task", request.cpus_per_task, "of each process: for its loop, and its loader workers")
    for name in ("mem", "time", "partition", "account", "qos", "nodelist", "exclude", "array"):
        value = getattr(request, name)
        if value is not None:
            yield _option(name, value, {"mem": "of each node", "array": "each task is a run of its own"}.get(name, ""))
    yield _option("output", output_of(request))
    yield _option("open-mode", "append", "a job that comes again writes below what it had written")
    if request.requeue:
        yield _option("requeue", None, "it comes again after a node was lost, or another job needed the place")
    else:
        yield _option("no-requeue", None, "it does not come again by itself")
    name, _, seconds = request.signal.partition("@")
    yield _option("signal", request.signal, f"{seconds} s before its time is up, every process gets SIG{name}")
    for option in request.options:
        yield f"#SBATCH {option}"


def _option(name: str, value: object, comment: str = "") -> str:
    text = "" if value is None else f"={value}"
    if re.search(r"[\s#'\"\\]", text):  # sbatch reads quotes as a shell does
        text = f"={shlex.quote(str(value))}"
    line = f"#SBATCH --{name}{text}"
    return f"{line:<{_WIDTH}} # {comment}" if comment else line


def _settings(request: Request) -> list[str]:
    if not request.settings:
        return []
    text = json.dumps(dict(request.settings), sort_keys=True)
    return [
        "# Settings of the run: those of lockstep.join(), and of lockstep run.",
        f"export LOCKSTEP_SETTINGS={shlex.quote(text)}",
    ]


def _start(request: Request) -> Iterator[str]:
    yield "# Each task is a process of the run: lockstep.join() reads from Slurm which one it is, and where the others are."
    again = " (srun does not take the number of cores from above.)" if request.cpus_per_task else ""
    yield f"# If one fails, all are ended.{again}"
    srun = "srun --kill-on-bad-exit=1" + (f" --cpus-per-task={request.cpus_per_task}" if request.cpus_per_task else "")
    program = shlex.join([request.python, *(["-m"] if request.is_module else []), request.script, *request.args])
    if request.container is None:
        yield f"{srun} {program}"
    else:
        options = ["--nv"] if request.num_gpus else []  # the driver of the GPUs, from the host
        binds = "".join(f" --bind {shlex.quote(place)}" for place in request.bind)
        yield f"{srun} \\"
        yield f'    {shlex.join([request.runtime, "exec", *options])} --bind "$PWD" --pwd "$PWD"{binds} \\'
        yield f"    {shlex.quote(request.container)} \\"
        yield f"    {program}"
    yield "status=$?"


def _end(request: Request) -> list[str]:
    # The number of an array's last task is also that of the whole array, and would requeue all of its tasks.
    job = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if request.array else "$SLURM_JOB_ID"
    if request.requeue:
        return [
            "# 75 means: asked to make room, not done, and all is saved. The same job comes again then, and resumes after the",
            "# last step that it did. (Not after scancel: that ends this script, too.)",
            'if [ "$status" -eq 75 ]; then',
            f'    scontrol requeue "{job}" && exit 0',
            "fi",
            'exit "$status"',
        ]
    return [
        "# 75 means: asked to make room, not done, and all is saved. The same file, submitted again, resumes after the last",
        "# step that it did.",
        'exit "$status"',
    ]
