"""``lockstep doctor`` on the command line."""

import json

import pytest
from crew import warm_server
from warm import run_on

from lockstep._tools.doctor.processes import NAME
from lockstep._tools.doctor.table import CHECKS

pytestmark = pytest.mark.timeout(90)

THREADS = {"OMP_NUM_THREADS": "128"}


@pytest.fixture
def doctor(outlives_tests, request, tmp_path):
    def call(*options, env=None):
        return run_on(warm_server(request, outlives_tests), tmp_path, options, env=env, verb="doctor")

    return call


def test_a_table_for_people_with_remedies_below(doctor):
    done = doctor("--nproc", "2", env=THREADS)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "found"]
    for check in (*(check.name for check in CHECKS), NAME):
        assert len([line for line in lines[1:] if line.startswith(f"{check}  ")]) == 1, check
    assert any(line.startswith("warn: threads: ") and "--threads " in line for line in lines)
    assert " warn, 0 fail, in " in lines[-1]


@pytest.mark.long
def test_json_for_programs_and_status_1_after_a_failure(doctor):
    done = doctor("--json", "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stderr) == (1, "")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert set(found) == {NAME, *(check.name for check in CHECKS)}
    assert found["GPUs"]["state"] == "fail"
    assert found["GPUs"]["values"]["wants_gpus"] is True


@pytest.mark.long
def test_a_script_that_is_not_there_is_said_before_anything_is_examined(doctor):
    done = doctor("nosuch.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nosuch.py: no such script" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("call", "options", "env"),
    [
        ("shards=2", ("--nproc", "1"), {}),
        ("shards=4", ("--nproc", "2"), {"OMP_NUM_THREADS": "3"}),
    ],
)
def test_it_counts_the_threads_that_the_run_will_have(
    doctor, request, outlives_tests, tmp_path, monkeypatch, call, options, env
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "train.py"
    script.write_text(f"import lockstep, torch\nteam = lockstep.join({call})\nteam.print(torch.get_num_threads())\n")
    server = warm_server(request, outlives_tests)
    ran = run_on(server, tmp_path, (*options, str(script)), env=env)
    examined = doctor("--json", *options, str(script), env=env)
    found = {finding["check"]: finding["values"] for finding in json.loads(examined.stdout)}
    assert found["threads"]["threads"] == int(ran.stdout.split()[-1])
