"""``lockstep slurm`` on a real Slurm: jobs that train, are stopped in every way, come again, and
lose nothing."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import HostError

from lockstep._world.job.hostlist import expand_hosts

pytestmark = pytest.mark.timeout(240)

ROOT = Path(__file__).parents[2]
SESSIONS = re.findall(r"^```console slurm\n(.*?)^```", (ROOT / "docs" / "slurm.md").read_text(), flags=re.M | re.S)

TRAIN = """
import hashlib, os, sys, time, torch, lockstep
team = lockstep.join()
inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
torch.nn.init.constant_(model[0].bias, float(os.environ.get("SLURM_ARRAY_TASK_ID", 0)))
model, loader = team.prepare(model, torch.utils.data.DataLoader(data, 8, shuffle=True))
pace_s = float(sys.argv[2])
for epoch in team.epochs(int(sys.argv[1])):
    for batch in loader:
        for x, y in batch.shards:
            team.backward((model(x) - y).square().mean())
        for p in model.parameters():  # PyTorch's optimizers import its compiler: half of the processor's time of each process
            p.data.sub_(p.grad, alpha=0.05)
            p.grad = None
        while pace_s and time.time() < os.stat("begin").st_mtime + pace_s * team.step and not os.path.exists("hurry"):
            time.sleep(0.01)
        if team.is_main:
            with open(f"steps{os.environ.get('SLURM_ARRAY_TASK_ID', '')}", "a") as file:
                file.write(f"{team.step}\\n")
weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
team.print(f"weights {weights} by {team.world_size} in {team.run_dir}")
"""
EPOCHS, STEPS = 10, 80
ONE_EACH = ("--nodes", "2", "--cpus-per-task", "2", "--shards", "4", "--threads", "1")
"""A process on each node: what takes most of the processor is their imports, and what is done to
jobs is done to nodes."""
TWO_EACH = (*ONE_EACH, "--ntasks-per-node", "2")


class Jobs:
    """Jobs of one directory, in which the script is."""

    def __init__(self, cluster, directory):
        self.slurm, self.directory = cluster.slurm, directory
        (directory / "train.py").write_text(TRAIN)
        (directory / "begin").touch()

    def lockstep(self, *options, pace_s=0.0, check=True, **more):
        """``lockstep slurm`` for train.py, in the directory."""
        command = [sys.executable, "-m", "lockstep._cli.main", "slurm", *options, "train.py", EPOCHS, pace_s]
        return self.slurm.run(list(map(str, command)), cwd=self.directory, check=check, **more)

    def submit(self, *options, **more):
        done = self.lockstep(*options, "--submit", **more)
        return int(re.search(r"^submitted as job (\d+)$", done.stdout, flags=re.MULTILINE)[1])

    def steps(self, task=""):
        """The steps that were done, in their order."""
        path = self.directory / f"steps{task}"
        return list(map(int, path.read_text().split())) if path.exists() else []

    def output(self, job):
        path = self.directory / f"train-{job}.out"
        return path.read_text() if path.exists() else ""

    def wait_for_steps(self, number, job, task="", timeout_s=90.0):
        self.until(lambda: len(self.steps(task)) >= number, f"{number} steps", job, timeout_s)

    def wait_for_output(self, text, job, timeout_s=90.0):
        self.until(lambda: text in self.output(job), text, job, timeout_s)

    def until(self, is_so, what, job, timeout_s=90.0):
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n{self.output(job)}"
            time.sleep(0.05)

    def hurry(self):
        """Let them come to their ends."""
        (self.directory / "hurry").touch()

    def weights(self, job):
        """The one digest that the job has printed."""
        [(digest, number)] = re.findall(r"^weights (\w+) by (\d) ", self.output(job), flags=re.MULTILINE)
        return digest, int(number)

    def ends(self, job, state="COMPLETED"):
        try:
            self.slurm.wait_for_job(job, state, timeout_s=90)
        except HostError as error:
            pytest.fail(f"{error}\n-- output\n{self.output(job)}", pytrace=False)


@pytest.fixture
def jobs(slurm_cluster, tmp_path):
    return Jobs(slurm_cluster, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The digest of one process that nobody disturbs."""
    directory = tmp_path_factory.mktemp("alone")
    (directory / "train.py").write_text(TRAIN)
    (directory / "begin").touch()
    environ = {**os.environ, "LOCKSTEP_SETTINGS": '{"shards": 4, "threads": 1}'}
    command = [sys.executable, "train.py", str(EPOCHS), "0"]
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=60, check=True)
    return re.search(r"^weights (\w+) by 1", done.stdout, flags=re.MULTILINE)[1]


def check_whole(jobs, job, undisturbed, nproc=2):
    """The job did every step once, and its answer is that of one process."""
    assert jobs.steps() == list(range(1, STEPS + 1)), jobs.output(job)
    assert jobs.weights(job) == (undisturbed, nproc)


def test_lists_of_hosts_are_read_as_slurm_reads_them(slurm_cluster):
    text = "a[1-3,07-09],r[1-2]n[08-10],login,x[5]"
    assert expand_hosts(text) == slurm_cluster.slurm.run(["scontrol", "show", "hostnames", text]).stdout.split()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--partition", "night"], "Invalid partition name"),
        (["--gpus-per-node", "8", "--nodes", "2"], "Requested node configuration is not available"),
    ],
)
def test_what_the_cluster_does_not_have_is_said_before_submission_with_what_it_has(jobs, options, words):
    done = jobs.lockstep(*options, "--submit", check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "host[0-1]" in done.stderr
    assert jobs.slurm.run(["squeue", "--noheader"]).stdout == ""
    assert not (jobs.directory / "train.sbatch").exists()


@pytest.mark.long
def test_a_job_on_two_nodes_has_the_answer_of_one_process_and_says_what_does_not_fit(jobs, undisturbed):
    job = jobs.submit(*TWO_EACH, "--gpus-per-node", "2", "--workers", "2", "--job-name", "train")
    jobs.ends(job)
    check_whole(jobs, job, undisturbed, nproc=4)
    said = jobs.output(job)
    assert re.search(r" host0:\d+ \([\d.]+, eth0\)", said)
    assert "2 GPUs on host0" in said
    assert "2 cores for each process" in said


# There is no apptainer here. This takes its place on the command line, writes down what it was
# given, and runs the program.
STAND_IN = """\
#!/bin/sh
printf '%s\\n' "$@" > "given-$SLURM_PROCID"
while [ "$1" != image.sif ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.long
def test_what_runs_a_container_gets_the_directory_the_gpus_and_the_program(jobs, undisturbed):
    programs = jobs.directory / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text(STAND_IN)
    (programs / "apptainer").chmod(0o755)
    options = (
        "--container",
        "image.sif",
        "--bind",
        "/data",
        "--python",
        sys.executable,
        "--gpus-per-node",
        "1",
        "--shards",
        "4",
    )
    job = jobs.submit(*options, "--threads", "1", env={"PATH": f"{programs}:{os.environ['PATH']}"})
    jobs.ends(job)
    assert jobs.weights(job) == (undisturbed, 1)
    here = str(jobs.directory)
    given = [
        "exec",
        "--nv",
        "--bind",
        here,
        "--pwd",
        here,
        "--bind",
        "/data",
        "image.sif",
        sys.executable,
        "train.py",
        EPOCHS,
        "0.0",
    ]
    assert (jobs.directory / "given-0").read_text().splitlines() == list(map(str, given))


@pytest.mark.long
def test_a_job_that_is_asked_to_make_room_comes_again_and_goes_on_although_it_was_to_begin_anew(jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, "--fresh", pace_s=0.4)
    jobs.wait_for_steps(5, job)
    jobs.slurm.run(["scancel", "--signal=USR1", str(job)])
    jobs.wait_for_output("is saved after step", job)
    jobs.hurry()
    jobs.ends(job)
    assert "Restarts=1" in jobs.slurm.run(["scontrol", "show", "job", str(job)]).stdout
    check_whole(jobs, job, undisturbed)


@pytest.mark.long
@pytest.mark.longest
def test_a_job_that_is_cancelled_is_saved_first_and_comes_again_only_when_it_is_submitted_again(jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, pace_s=0.4)
    jobs.wait_for_steps(5, job)
    jobs.slurm.run(["scancel", str(job)])
    jobs.ends(job, "CANCELLED")
    jobs.wait_for_output("is saved after step", job)
    time.sleep(8)  # a requeued one would be back
    assert jobs.slurm.job_state(job) == "CANCELLED"
    jobs.hurry()
    second = jobs.submit(*ONE_EACH, pace_s=0.4)
    jobs.ends(second)
    check_whole(jobs, second, undisturbed)


@pytest.mark.longest
@pytest.mark.long
def test_a_job_that_is_requeued_by_others_loses_nothing(jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, pace_s=0.4)
    jobs.wait_for_steps(5, job)
    jobs.slurm.run(["scontrol", "requeue", str(job)])
    jobs.wait_for_output("is saved after step", job)
    jobs.hurry()
    jobs.ends(job)
    check_whole(jobs, job, undisturbed)


@pytest.mark.longest
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_whose_time_is_up_comes_again_until_it_is_done(jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, "--time", "2", "--signal", "USR1@20", pace_s=4.0)
    jobs.wait_for_output("SIGUSR1 received", job, timeout_s=150)
    jobs.wait_for_output("is saved after step", job)
    jobs.hurry()
    jobs.ends(job)
    check_whole(jobs, job, undisturbed)


@pytest.mark.longest
@pytest.mark.long
def test_a_job_goes_on_while_the_controller_restarts_and_its_node_is_drained(jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, pace_s=0.4)
    jobs.wait_for_steps(10, job)
    jobs.slurm.stop_controller()
    seen = len(jobs.steps())
    jobs.wait_for_steps(seen + 10, job)
    jobs.slurm.start_controller()
    jobs.slurm.drain("host1")
    seen = len(jobs.steps())
    jobs.wait_for_steps(seen + 10, job)
    # Asked to make room it leaves, and waits for the node.
    jobs.slurm.run(["scancel", "--signal=USR1", str(job)])
    jobs.slurm.wait_for_job(job, "PENDING", timeout_s=60)
    jobs.slurm.resume("host1")
    jobs.hurry()
    jobs.ends(job)
    check_whole(jobs, job, undisturbed)


@pytest.mark.longest
@pytest.mark.long
def test_a_lost_node_costs_the_steps_since_the_newest_checkpoint_and_nothing_else(slurm_cluster, jobs, undisturbed):
    job = jobs.submit(*ONE_EACH, "--fresh", "--checkpoint-every", "10", pace_s=0.4)
    jobs.wait_for_steps(35, job)
    slurm_cluster.hosts[1].kill()
    jobs.slurm.wait_for_job(job, "PENDING", timeout_s=60)
    slurm_cluster.hosts[1].revive()
    jobs.hurry()
    jobs.ends(job)
    assert jobs.weights(job) == (undisturbed, 2)
    repeated = len(jobs.steps()) - STEPS
    assert sorted(set(jobs.steps())) == list(range(1, STEPS + 1))
    assert repeated <= 30, "that much at most lies between a step and the checkpoint before it that was written"


@pytest.mark.long
@pytest.mark.longest
def test_tasks_of_an_array_on_the_same_nodes_are_runs_of_their_own_and_each_goes_on_with_its_own(jobs):
    options = ("--nodes", "2", "--cpus-per-task", "2", "--shards", "2", "--threads", "1", "--job-name", "train")
    array = jobs.submit(*options, "--array", "0-1", "--output", "train-%a.out", pace_s=0.4)
    for task in range(2):
        jobs.wait_for_steps(10, task, task)
    for task in (1, 0):  # the last one comes back first
        jobs.slurm.run(["scancel", "--signal=USR1", f"{array}_{task}"])
        jobs.wait_for_output("is saved after step", task)
    jobs.hurry()
    for task in range(2):
        jobs.until(lambda task=task: "weights" in jobs.output(task), "weights", task)
        assert jobs.steps(task) == list(range(1, STEPS + 1)), jobs.output(task)
    assert len({jobs.weights(task) for task in range(2)}) == 2
    assert len({re.search(r" in (\S*runs/\S+)", jobs.output(task))[1] for task in range(2)}) == 2
    jobs.until(lambda: not jobs.slurm.run(["squeue", "--noheader"]).stdout, "an empty queue", 0)


BY_HAND = """
import sys, torch, lockstep
team = lockstep.join(rank=int(sys.argv[1]), world_size=2, init_method="tcp://host0:29512", timeout_s=90.0)
print(f"rank {team.rank} on {team.world.host}: {team.all_reduce(torch.ones(())).item()}")
"""


@pytest.mark.long
def test_one_job_a_node_each_with_its_number_may_start_in_any_order_and_the_first_says_that_it_waits(
    slurm_cluster, tmp_path
):
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    started = []
    for rank in (1, 0):
        with (tmp_path / f"{rank}").open("w") as out:
            command = ["srun", f"--nodelist=host{rank}", sys.executable, "by_hand.py", str(rank)]
            started.append(slurm_cluster.slurm.controller.start(command, cwd=tmp_path, stdout=out, stderr=out))
        if rank:
            deadline = time.monotonic() + 60
            while "tcp://host0:29512 for rank 0" not in (tmp_path / "1").read_text():
                assert time.monotonic() < deadline, (tmp_path / "1").read_text()
                time.sleep(0.05)
    assert [process.wait(60) for process in started] == [0, 0], [(tmp_path / name).read_text() for name in "01"]
    for rank in (0, 1):
        assert f"rank {rank} on host{rank}: 2.0" in (tmp_path / f"{rank}").read_text()


@pytest.mark.long
def test_several_tasks_that_each_start_lockstep_run_are_refused(slurm_cluster, tmp_path):
    (tmp_path / "alone.py").write_text("import lockstep\nprint('trained as', lockstep.join().world_size, flush=True)\n")
    command = [sys.executable, "-m", "lockstep._cli.main", "run", "--nproc-per-node", "2", "--shards", "2", "alone.py"]
    run = slurm_cluster.slurm.run
    several = run(["srun", "--nodes=2", "--ntasks=2", *command], cwd=tmp_path, check=False)
    assert several.returncode != 0
    assert "srun started 2 copies of this command" in several.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "session",
    # (srun and salloc start scripts in other tests of this file.)
    [pytest.param(session, marks=[] if "sbatch" in session else pytest.mark.longest) for session in SESSIONS],
    ids=range(len(SESSIONS)),
)
def test_the_commands_of_the_page_about_slurm_run_as_written(slurm_cluster, tmp_path, session):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = re.findall(r"^\$ (.*)", session, flags=re.MULTILINE)
    assert len(commands) > 1
    environ = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = slurm_cluster.slurm.run(["bash", "-ec", "\n".join(commands)], cwd=tmp_path, env=environ, timeout_s=200)
    trained = re.findall(r"on (\d) processes.* run (\S*runs/\S+)", done.stdout)
    assert [number for number, _ in trained] == (["4"] if "sbatch" in session else ["4", "2"]), done.stdout + done.stderr
