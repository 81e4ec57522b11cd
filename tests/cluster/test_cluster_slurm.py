"""The Slurm of a cluster is a real one."""

import time

import pytest
from cluster import HostError
from cluster_fixtures import lent


def wait_for_text(path, text, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not path.exists() or text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text() if path.exists() else f"{path} is not there"
        time.sleep(0.05)


def wait_for_tasks(path, start=0):
    """Both run: a task that is cancelled while Slurm still starts it can be overlooked, and stays for minutes."""
    for task in range(2):
        wait_for_text(path, f"task {task} of start {start} on host{task}")


def batch(slurm, tmp_path, script, *options):
    return slurm.submit(script, f"--output={tmp_path}/log", "--open-mode=append", *options)


LONG = """
#!/bin/sh
echo start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST
srun sh -c 'echo task $SLURM_PROCID of start ${SLURM_RESTART_COUNT:-0} on $(hostname); sleep 600'
"""


def test_srun_runs_on_both_hosts(slurm_cluster):
    told = slurm_cluster.slurm.run(["srun", "--nodes=2", "--ntasks-per-node=2", "hostname"]).stdout
    assert sorted(told.split()) == ["host0", "host0", "host1", "host1"]


def test_gpus_are_given_out_that_are_not_there(slurm_cluster):
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert slurm_cluster.slurm.run(["srun", "--nodes=2", "--gpus-per-node=2", *show]).stdout == "0,1\n0,1\n"
    with pytest.raises(HostError, match="not available"):
        slurm_cluster.slurm.run(["srun", "--nodes=1", "--gpus-per-node=5", *show])


@pytest.mark.long
def test_a_requeued_job_comes_again(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    job = batch(slurm, tmp_path, LONG, "--nodes=2", "--requeue")
    wait_for_tasks(tmp_path / "log")
    slurm.run(["scontrol", "requeue", str(job)])
    wait_for_text(tmp_path / "log", "start 1 on host[0-1]")
    wait_for_tasks(tmp_path / "log", 1)
    assert slurm.job_state(job) == "RUNNING"
    slurm.run(["scancel", str(job)])
    slurm.wait_for_job(job, "CANCELLED")


def test_a_cancelled_job_leaves_no_process_on_any_host(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    job = batch(slurm, tmp_path, LONG, "--nodes=2")
    wait_for_tasks(tmp_path / "log")
    assert all(host.processes() for host in slurm_cluster.hosts)
    slurm.run(["scancel", str(job)])
    slurm.wait_for_job(job, "CANCELLED")  # that nothing is left is what the fixture looks for


def test_a_job_goes_on_while_the_controller_restarts(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    script = """
    #!/bin/sh
    srun sh -c 'echo task $SLURM_PROCID; while ! test -e go; do sleep 0.1; done; echo end $SLURM_PROCID'
    """
    job = batch(slurm, tmp_path, script, "--nodes=2", f"--chdir={tmp_path}")
    wait_for_text(tmp_path / "log", "task 0")
    wait_for_text(tmp_path / "log", "task 1")
    slurm.stop_controller()
    assert slurm.run(["squeue"], check=False).returncode != 0
    slurm.start_controller()
    assert slurm.job_state(job) == "RUNNING"
    (tmp_path / "go").touch()
    slurm.wait_for_job(job, "COMPLETED")
    assert sorted((tmp_path / "log").read_text().split()[-4:]) == ["0", "1", "end", "end"]


def test_a_drained_host_takes_no_job_until_it_is_resumed(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    slurm.drain("host1")
    job = batch(slurm, tmp_path, "#!/bin/sh\nhostname\n", "--nodes=2")
    assert slurm.run(["srun", "--nodes=1", "hostname"]).stdout == "host0\n"
    assert slurm.job_state(job) == "PENDING"
    slurm.resume("host1")
    slurm.wait_for_job(job, "COMPLETED")


def test_a_test_that_leaves_a_job_fails_and_the_next_gets_an_empty_queue(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    slurm.drain("host0")
    slurm.drain("host1")
    with pytest.raises(pytest.fail.Exception, match=r"left on the hosts:\n  job \d+ job.sh PENDING"), lent(slurm_cluster):
        batch(slurm, tmp_path, LONG)
    assert slurm.run(["squeue", "--noheader"]).stdout == ""
    assert slurm.run(["srun", "--nodes=2", "hostname"]).stdout.count("host") == 2


@pytest.mark.long
@pytest.mark.longest
def test_a_lost_host_is_noticed_and_taken_back_when_it_returns(slurm_cluster, tmp_path):
    slurm, (_, second) = slurm_cluster.slurm, slurm_cluster.hosts
    job = batch(slurm, tmp_path, LONG, "--nodes=2", "--requeue")
    wait_for_tasks(tmp_path / "log")
    second.kill()
    wait_for_text(tmp_path / "log", "NODE FAILURE", timeout_s=60)
    slurm.wait_for_job(job, "PENDING", timeout_s=60)
    second.revive()
    wait_for_text(tmp_path / "log", "start 1 on host[0-1]", timeout_s=60)
    wait_for_tasks(tmp_path / "log", 1)
    slurm.run(["scancel", str(job)])
    slurm.wait_for_job(job, "CANCELLED")
