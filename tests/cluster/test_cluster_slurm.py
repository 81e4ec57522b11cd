"""The Slurm of a cluster is a real one."""

import pytest
from cluster import HostError
from cluster_fixtures import lent


def test_gpus_are_given_out_that_are_not_there(slurm_cluster):
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert slurm_cluster.slurm.run(["srun", "--nodes=2", "--gpus-per-node=2", *show]).stdout == "0,1\n0,1\n"
    with pytest.raises(HostError, match="not available"):
        slurm_cluster.slurm.run(["srun", "--nodes=1", "--gpus-per-node=5", *show])


def test_a_test_that_leaves_a_job_fails_and_the_next_gets_an_empty_queue(slurm_cluster, tmp_path):
    slurm = slurm_cluster.slurm
    slurm.drain("host0")
    slurm.drain("host1")
    with pytest.raises(pytest.fail.Exception, match=r"job \d+ job.sh PENDING"), lent(slurm_cluster):
        slurm.submit("#!/bin/sh\nsrun sleep 600\n", f"--output={tmp_path}/log")
    assert slurm.run(["squeue", "--noheader"]).stdout == ""
    assert slurm.run(["srun", "--nodes=2", "hostname"]).stdout.count("host") == 2
