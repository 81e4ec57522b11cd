"""The batch file as a whole: what a reader sees, a shell can read, and no argument can break."""

import shlex
import subprocess

import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._tools.slurm.batch import batch_text
from lockstep._tools.slurm.request import Request

pytestmark = pytest.mark.timeout(20)

WHOLE = """\
#!/bin/bash
# Written by:
#   lockstep slurm --nodes 2 train.py
# Feel free to change it.
#
#   sbatch train.sbatch   submits it, and prints the job number
#   squeue --me           shows it
#   scancel NUMBER        ends it for good, after saving a checkpoint
#   its output            train-%j.out

#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4        # processes per node: one for each GPU
#SBATCH --gpus-per-node=4          # each process sees all of them, and uses its part
#SBATCH --cpus-per-task=12         # per process: for its loop and its loader workers
#SBATCH --time=8:00:00
#SBATCH --nodelist=n[07-08]
#SBATCH --output=train-%j.out
#SBATCH --open-mode=append         # a requeued job continues the file
#SBATCH --requeue                  # after a lost node or a preemption
#SBATCH --signal=USR1@90           # 90 s before the time limit every process gets SIGUSR1

# Settings of the run, as for lockstep.join() and lockstep run.
export LOCKSTEP_SETTINGS='{"shards": 8}'

# Each task is a process of the run: lockstep.join() gets its rank and the other nodes from Slurm.
# If one fails, all are stopped. (srun does not inherit the number of cores from above.)
srun --kill-on-bad-exit=1 --cpus-per-task=12 /venv/bin/python train.py --epochs 3
status=$?

# 75: preempted and saved. The job is requeued, and resumes after its last step.
# (Not after scancel, which also ends this script.)
if [ "$status" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit "$status"
"""


def text(request, command=("lockstep", "slurm", "--nodes", "2", "train.py")):
    return batch_text(request, file="train.sbatch", command=command)


def request(**changed):
    usual = {"script": "train.py", "job_name": "train", "nodes": 2}
    return Request(**{**usual, **changed})


def test_the_file_is_this_one():
    asked = request(
        args=("--epochs", "3"),
        settings={"shards": 8},
        python="/venv/bin/python",
        gpus_per_node="4",
        cpus_per_task=12,
        time="8:00:00",
        nodelist="n[07-08]",
    )
    assert text(asked) == WHOLE


def test_in_a_container_the_program_is_its_and_the_driver_of_the_gpus_the_hosts():
    asked = request(
        gpus_per_node="1", container="image.sif", bind=("/data", "/home/shared:/home/shared"), runtime="singularity"
    )
    assert (
        "srun --kill-on-bad-exit=1 \\\n"
        '    singularity exec --nv --bind "$PWD" --pwd "$PWD" --bind /data --bind /home/shared:/home/shared \\\n'
        "    image.sif \\\n"
        "    python3 train.py\n"
    ) in text(asked)
    assert "--nv" not in text(request(container="image.sif"))


def test_without_requeue_it_ends_with_its_status():
    found = text(request(requeue=False))
    assert "#SBATCH --no-requeue " in found
    assert "scontrol" not in found


def test_an_array_writes_a_file_for_each_task_and_requeues_one():
    found = text(request(array="0-9%2"))
    assert "#SBATCH --array=0-9%2 " in found
    assert "#SBATCH --output=train-%A_%a.out\n" in found
    assert '    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}" && exit 0\n' in found, "and no other task"


@pytest.mark.parametrize(
    ("asked", "tasks"),
    [
        ({}, 1),
        ({"gpus_per_node": "nvidia_a100-sxm4:8"}, 8),
        ({"gpus_per_node": "8", "settings": {"devices_per_process": 2}}, 4),
        ({"gpus_per_node": "8", "ntasks_per_node": "2"}, 2),
        ({"gpus_per_node": "8", "ntasks_per_node": "gpu"}, 8),
        ({"ntasks_per_node": "auto"}, 1),
    ],
)
def test_there_is_a_process_for_each_gpu(asked, tasks):
    assert f"#SBATCH --ntasks-per-node={tasks} " in text(request(**asked))


@pytest.mark.parametrize("word", ["it's a b", '"', "$HOME `id`", "#", "\\", "--"])
def test_a_shell_hands_every_argument_on_as_it_was(word, tmp_path):
    found = text(request(args=(word,), settings={"run_dir": word}), command=("lockstep", word))
    shown = tmp_path / "srun"
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$LOCKSTEP_SETTINGS" "$@"\n')
    shown.chmod(0o755)
    done = subprocess.run(
        ["bash"], input=found, env={"PATH": f"{tmp_path}:/bin"}, capture_output=True, text=True, timeout=100
    )
    settings, *arguments = done.stdout.splitlines()
    assert arguments == ["--kill-on-bad-exit=1", "python3", "train.py", word]
    assert settings == '{"run_dir": "' + word.replace("\\", "\\\\").replace('"', '\\"') + '"}'
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("requeue", "status"), [(True, 0), (True, 1), (True, 75), (False, 75)])
def test_the_job_is_requeued_after_75_alone_and_else_ends_with_its_status(status, requeue, tmp_path):
    for name, does in (("srun", f"exit {status}"), ("scontrol", f'echo "$@" > {shlex.quote(str(tmp_path))}/told')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/bin", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash"], input=text(request(requeue=requeue)), env=environ, text=True, timeout=100)
    comes_again = requeue and status == 75
    assert done.returncode == (0 if comes_again else status)
    assert (tmp_path / "told").exists() == comes_again
    assert not comes_again or (tmp_path / "told").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"nodes": 0}, "option-out-of-range"),
        ({"ntasks_per_node": "cpu"}, "nproc-invalid"),
        ({"ntasks_per_node": 0}, "nproc-invalid"),
        ({"cpus_per_task": -1}, "option-out-of-range"),
        ({"gpus_per_node": "a100"}, "gpus-invalid"),
        ({"signal": "B:USR1@90"}, "signal-invalid"),
        ({"signal": "KILL@90"}, "signal-invalid"),
        (
            {"array": "0-9", "settings": {"run_dir": "runs/mine"}},
            "array-with-run-dir",
        ),
        ({"settings": {"shards": 1}}, "world-size-above-shards"),
        ({"settings": {"precision": "64"}}, "unknown-name"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, code):
    with raises(ConfigError, code):
        request(**asked)


def test_the_command_and_the_files_name_cannot_end_their_lines_either():
    with raises(ConfigError, "line-break-in-command"):
        text(request(), command=("lockstep", "slurm", "--run-dir", "a\nb"))
    with raises(ConfigError, "line-break-in-command"):
        batch_text(request(), file="a\nb", command=("lockstep",))


@pytest.mark.parametrize("text", ["0", "a100", ":4"])
def test_what_is_no_number_of_gpus_is_refused(text):
    with raises(ConfigError, "gpus-invalid"):
        request(gpus_per_node=text)
