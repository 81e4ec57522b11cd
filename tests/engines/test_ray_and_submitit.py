"""The scripts of docs/how-to/ray-and-submitit.md, run by Ray Train and by submitit: interrupted and
resumed, to the digest of one process."""

import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap

import pytest
from engine_helpers import ROOT, resumed_after

from lockstep._events.history import read_launches

PAGE = (ROOT / "docs" / "how-to" / "ray-and-submitit.md").read_text()
SCRIPTS = dict(re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```', PAGE, flags=re.DOTALL | re.MULTILINE))
LINE = re.compile(r"^( *)for batch in loader:\n", flags=re.MULTILINE)
WEIGHTS = "checkpoints/step-00000032/model.safetensors"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def with_line(name, line):
    """The page's script with this line at the beginning of every step."""
    text, count = LINE.subn(rf"\g<0>\1    {line}\n", SCRIPTS[name])
    assert count == 1
    return text


@pytest.fixture
def require_library(require):
    """``require_library(name)``: skip the test if Ray, or submitit, is not installed."""

    def check(name):
        is_missing = importlib.util.find_spec(name) is None
        require(name, f"{name} is not installed (pip install {name})" if is_missing else None)

    return check


@pytest.fixture
def run_driver(require_library, tmp_path):
    """``run_driver(name, script, driver)``: the driver's output. It can import the script."""

    def run(name, script, driver):
        require_library({"train_on_ray": "ray", "train_with_submitit": "submitit"}[name])
        (tmp_path / f"{name}.py").write_text(script)
        (tmp_path / "driver.py").write_text(textwrap.dedent(driver))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_CURRENT", "OMP_"))}
        env |= {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, "driver.py"]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with tempfile.TemporaryDirectory() as sockets:  # whose paths must be short
            done = subprocess.run(command, cwd=tmp_path, env={**env, "RAY_TMPDIR": sockets}, timeout=550, **streams)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


LOST = (
    with_line("train_on_ray", "team.step in (13, 23) and team.rank == 1 and be_lost_once(team)")
    + """

def be_lost_once(team):
    import time

    while not (team.run_dir / "checkpoints" / "newest").exists():
        time.sleep(0.01)
    mark = team.run_dir.with_name(f"lost-{team.step}")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
"""
)


def test_the_function_for_ray_gives_the_same_digest_on_one_process_and_on_two(require_library, run_here, tmp_path):
    """Without Ray's processes, which the tests below start: they take a minute of two cores."""
    require_library("ray")
    (tmp_path / "train_on_ray.py").write_text(SCRIPTS["train_on_ray"])
    for number in ("1", "2"):
        source = f"""
        import train_on_ray
        assert train_on_ray.LockstepConfig().backend_cls is train_on_ray.Variables
        train_on_ray.train({{"run_dir": "runs/{number}"}})
        """
        done = run_here(source, "--nproc-per-node", number)
        assert done.returncode == 0, done.stderr
    assert digest(tmp_path, "1") == digest(tmp_path, "2")


@pytest.mark.longest
def test_a_worker_of_ray_is_lost_and_another_number_of_processes_resumes(run_driver, run_here, tmp_path):
    said = run_driver(
        "train_on_ray",
        LOST,
        """
        import ray, train_on_ray
        from ray.train import TrainingFailedError
        ray.init(num_cpus=2, include_dashboard=False)
        try:
            train_on_ray.fit(num_workers=2, run_dir="runs/ray", max_failures=0)
        except TrainingFailedError:
            print("a worker was lost")
        """,
    )
    assert "a worker was lost" in said
    assert not (tmp_path / "runs" / "ray" / WEIGHTS).exists()
    for run in ("ray", "alone"):
        done = run_here(f'import train_on_ray\ntrain_on_ray.train({{"run_dir": "runs/{run}"}})')
        assert done.returncode == 0, done.stderr
    began, resumed = resumed_after(tmp_path / "runs" / "ray")
    assert began is None
    assert 0 < resumed < 13
    assert resumed_after(tmp_path / "runs" / "alone") == [None]
    assert digest(tmp_path, "ray") == digest(tmp_path, "alone")


@pytest.mark.longest
def test_ray_restarts_its_workers_and_another_number_of_them_resumes(run_driver, run_here, tmp_path):
    said = run_driver(
        "train_on_ray",
        LOST,
        """
        import ray, train_on_ray
        from ray.train import TrainingFailedError
        ray.init(num_cpus=2, include_dashboard=False)
        try:
            train_on_ray.fit(num_workers=2, run_dir="runs/ray", max_failures=1)
        except TrainingFailedError:
            print("a worker was lost again")
        train_on_ray.fit(num_workers=1, run_dir="runs/ray", max_failures=0)
        """,
    )
    assert "a worker was lost again" in said
    began, first, second = resumed_after(tmp_path / "runs" / "ray")
    assert began is None
    assert 0 < first < second
    assert read_launches(tmp_path / "runs" / "ray")[-1].has_ended
    (tmp_path / "train_on_ray.py").write_text(SCRIPTS["train_on_ray"])
    done = run_here('import train_on_ray\ntrain_on_ray.train({"run_dir": "runs/alone"})')
    assert done.returncode == 0, done.stderr
    assert digest(tmp_path, "ray") == digest(tmp_path, "alone")


def test_submitit_requeues_on_sigusr2_and_saves_on_sigterm(run_driver, run_here, tmp_path):
    paced = "os.path.exists('hurry') or time.sleep(0.2)"
    said = run_driver(
        "train_with_submitit",
        "import os, time\n" + with_line("train_with_submitit", paced),
        f"""
        import time
        from pathlib import Path
        import psutil, train_with_submitit
        from lockstep._events.history import read_launches

        def wait(launches, step):
            newest = Path("runs/submitit/checkpoints/newest")
            while not newest.exists() or len(read_launches(Path("runs/submitit"))) < launches:
                time.sleep(0.05)
            while int(newest.read_text().strip()[5:]) < step:
                time.sleep(0.05)

        def send(number):
            for task in psutil.Process(job._process.pid).children():
                task.send_signal(number)

        job = train_with_submitit.submit("runs/submitit")
        wait(launches=1, step=5)
        send({int(signal.SIGUSR2)})
        wait(launches=2, step=15)
        send({int(signal.SIGTERM)})
        while not job.done():
            time.sleep(0.05)
        print(job.task(0).stdout(), job.task(0).stderr())
        """,
    )
    assert "saved after step" in said
    assert not (tmp_path / "runs" / "submitit" / WEIGHTS).exists()
    (tmp_path / "hurry").touch()
    for run in ("submitit", "alone"):
        source = f"""
        import submitit, types, train_with_submitit
        submitit.helpers.TorchDistributedEnvironment = lambda: types.SimpleNamespace(export=lambda **options: None)
        train_with_submitit.Train("runs/{run}")()
        """
        done = run_here(source)
        assert done.returncode == 0, done.stderr
    began, requeued, resumed = resumed_after(tmp_path / "runs" / "submitit")
    assert began is None
    assert 0 < requeued < resumed
    assert digest(tmp_path, "submitit") == digest(tmp_path, "alone")


def digest(directory, run):
    return hashlib.sha256((directory / "runs" / run / WEIGHTS).read_bytes()).hexdigest()
