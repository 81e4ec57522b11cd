"""The text of a batch file, with comments for users who want to change it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence

from lockstep._base.errors import ConfigError
from lockstep._tools.slurm.request import Request

_WIDTH = 34
"""The column in which comments after an option begin."""


def output_of(request: Request) -> str:
    """Returns the job's output file, with Slurm's placeholders: %j is the job, %A and %a are array
    and task."""
    return request.output or f"{request.job_name}-{'%A_%a' if request.array else '%j'}.out"


def batch_text(request: Request, *, file: str, command: Sequence[str]) -> str:
    """The text of the batch file.

    Args:
        request: the job.
        file: the name of the file.
        command: the command that writes it.

    Raises:
        ConfigError: the command has a line break in it.
    """
    for text in (file, *command):
        if "\n" in text:  # it would end its line, and go on as a command
            raise ConfigError(
                f"{text!r}: a batch file cannot contain a line break in a command.", code="line-break-in-command"
            )
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
        f"sbatch {shlex.quote(file)}": "submits it, and prints the job number",
        "squeue --me": "shows it",
        "scancel NUMBER": "ends it for good, after saving a checkpoint",
        "its output": output_of(request),
    }
    width = max(map(len, hints))
    return [
        "#!/bin/bash",
        "# Written by:",
        f"#   {shlex.join(command)}",
        "# Feel free to change it.",
        "#",
        *(f"#   {command_text:<{width}}   {hint}" for command_text, hint in hints.items()),
    ]


def _options(request: Request) -> Iterator[str]:
    devices_per_task = request.config.devices_per_process or 1
    tasks_comment = (
        "one process per node"
        if request.tasks == 1
        else f"processes per node: one for {'each GPU' if devices_per_task == 1 else f'{devices_per_task} GPUs'}"
        if request.tasks * devices_per_task == request.num_gpus
        else "processes per node"
    )
    yield _option("job-name", request.job_name)
    yield _option("nodes", request.nodes)
    yield _option("ntasks-per-node", request.tasks, tasks_comment)
    if request.gpus_per_node:
        yield _option("gpus-per-node", request.gpus_per_node, "each process sees all of them, and uses its part")
    if request.cpus_per_task:
        yield _option("cpus-per-task", request.cpus_per_task, "per process: for its loop and its loader workers")
    for name in ("mem", "time", "partition", "account", "qos", "nodelist", "exclude", "array"):
        value = getattr(request, name)
        if value is not None:
            yield _option(name, value, {"mem": "per node", "array": "each task is a separate run"}.get(name, ""))
    yield _option("output", output_of(request))
    yield _option("open-mode", "append", "a requeued job continues the file")
    if request.requeue:
        yield _option("requeue", None, "after a lost node or a preemption")
    else:
        yield _option("no-requeue", None, "Slurm does not restart the job")
    name, _, seconds = request.signal.partition("@")
    yield _option("signal", request.signal, f"{seconds} s before the time limit every process gets SIG{name}")
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
        "# Settings of the run, as for lockstep.join() and lockstep run.",
        f"export LOCKSTEP_SETTINGS={shlex.quote(text)}",
    ]


def _start(request: Request) -> Iterator[str]:
    yield "# Each task is a process of the run: lockstep.join() gets its rank and the other nodes from Slurm."
    again = " (srun does not inherit the number of cores from above.)" if request.cpus_per_task else ""
    yield f"# If one fails, all are stopped.{again}"
    srun = "srun --kill-on-bad-exit=1" + (f" --cpus-per-task={request.cpus_per_task}" if request.cpus_per_task else "")
    program = shlex.join([request.python, *(["-m"] if request.is_module else []), request.script, *request.args])
    if request.container is None:
        yield f"{srun} {program}"
    else:
        options = ["--nv"] if request.num_gpus else []  # the GPU driver of the host
        binds = "".join(f" --bind {shlex.quote(directory)}" for directory in request.bind)
        yield f"{srun} \\"
        yield f'    {shlex.join([request.runtime, "exec", *options])} --bind "$PWD" --pwd "$PWD"{binds} \\'
        yield f"    {shlex.quote(request.container)} \\"
        yield f"    {program}"
    yield "status=$?"


def _end(request: Request) -> list[str]:
    # The job id of an array's last task is also that of the whole array, and would requeue all of
    # its tasks.
    job = "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" if request.array else "$SLURM_JOB_ID"
    if request.requeue:
        return [
            "# 75: preempted and saved. The job is requeued, and resumes after its last step.",
            "# (Not after scancel, which also ends this script.)",
            'if [ "$status" -eq 75 ]; then',
            f'    scontrol requeue "{job}" && exit 0',
            "fi",
            'exit "$status"',
        ]
    return [
        "# 75: preempted and saved. Submit the same file again to resume after the last step.",
        'exit "$status"',
    ]
