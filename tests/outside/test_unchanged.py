"""Scripts that know nothing of lockstep run unchanged under ``lockstep run``."""

import re

import pytest

pytestmark = pytest.mark.timeout(120)

TWO = ("--nproc-per-node", "2")


def test_a_trainer_meets_through_env_and_saves_on_rank_0(lockstep_run, here):
    lines = lockstep_run(*TWO, "tutorial.py", "2", "1", "--batch_size", "16")
    assert [line.rpartition("|")[0] for line in lines if "epoch" in line] == [
        f"[rank {rank}] epoch {epoch} | steps 2 " for rank in (0, 1) for epoch in (0, 1)
    ]
    weights = [line.split()[-1] for line in lines if "weights" in line]
    assert len(weights) == 2
    assert len(set(weights)) == 1
    assert (here / "snapshot.pt").exists()


@pytest.mark.long
def test_an_elastic_restart_goes_on_from_the_snapshot_to_the_undisturbed_result(lockstep_run, here):
    undisturbed = lockstep_run(*TWO, "tutorial.py", "3", "1")
    (here / "snapshot.pt").unlink()
    disturbed = lockstep_run(*TWO, "--max_restarts=1", "tutorial.py", "3", "1", "--fail-at", "1")
    resumed = [line for line in disturbed if "resumes" in line]
    assert resumed == [f"[rank {rank}] resumes at epoch 1" for rank in (0, 1)]
    assert [line for line in disturbed if line not in resumed] == undisturbed


@pytest.mark.parametrize("args", [(), pytest.param(("--amp",), marks=pytest.mark.long)])
def test_a_script_of_torch_distributed_launch_adds_up_its_evaluation_on_rank_0(lockstep_run, here, args):
    lines = lockstep_run("--nproc_per_node=2", "launched.py", *args)
    assert [line.partition(":")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all(line.endswith(" of 32 right") for line in lines)
    assert (here / "model.pt").exists()


@pytest.mark.long
def test_a_local_rank_argument_is_passed_where_the_script_has_it(lockstep_run):
    lines = lockstep_run(*TWO, "spmd.py", "--local_world_size=2")
    assert [re.sub(r"[\d.]+$", "", line) for line in lines] == [f"rank {r} of 2, local {r} of 2: " for r in (0, 1)]
    assert len({line.split()[-1] for line in lines}) == 1


@pytest.mark.long
def test_use_env_leaves_the_local_rank_to_the_environment(lockstep_run):
    lines = lockstep_run("--nproc_per_node=2", "--use_env", "spmd.py")
    assert [line.partition(",")[2].partition(":")[0] for line in lines] == [" local 0 of 1", " local 0 of 1"]


@pytest.mark.long
def test_a_script_that_spawns_runs_once_and_starts_its_processes(lockstep_run):
    lines = lockstep_run("spawn_env.py")
    assert [line.partition(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    assert len({line.split()[-1] for line in lines}) == 1


@pytest.mark.long
def test_a_script_with_an_address_of_its_own_meets_there(lockstep_run, free_port):
    lines = lockstep_run(*TWO, "own_address.py", env={"PORT": str(free_port)})
    assert [line.partition(":")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
    assert len({line.split()[-1] for line in lines}) == 1


def test_a_script_that_spawns_is_not_started_several_times(lockstep_run):
    told = lockstep_run(*TWO, "spawn_env.py", status=2)
    assert "torch.multiprocessing.spawn" in told
    assert "spawn_env.py, line " in told
    assert "Remove --nproc-per-node" in told


def test_a_script_that_can_do_both_is_launched_where_a_number_of_processes_is_given(lockstep_run):
    assert lockstep_run(*TWO, "either.py") == ["launched 0 of 2: 1.0", "launched 1 of 2: 1.0"]


@pytest.mark.long
def test_processes_that_a_script_starts_by_hand_send_and_receive(lockstep_run):
    assert lockstep_run("processes.py") == ["Rank 0 has data 14.0", "Rank 1 has data 14.0"]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=[pytest.mark.long, pytest.mark.longest])])
def test_a_module_with_relative_imports_and_own_loader_workers_reads_stdin(lockstep_run, method):
    lines = lockstep_run(*TWO, "-m", "gpt.train", method, stdin="the quick brown fox jumps over the lazy dog")
    assert [line.partition(",")[0] for line in lines] == ["rank 0: 10 steps", "rank 1: 10 steps"]
    assert len({line.split()[-1] for line in lines}) == 1


def test_a_process_group_can_be_closed_and_opened_again(lockstep_run, here):
    (here / "again.py").write_text(
        "import os, pathlib, time, torch, torch.distributed as dist\n"
        # without a process group: PyTorch's own ends race if one rank closes while the other uses
        # it
        "def meet(place):\n"
        "    pathlib.Path(f'{place}-' + os.environ['RANK']).touch()\n"
        "    while not all(pathlib.Path(f'{place}-{rank}').exists() for rank in (0, 1)):\n"
        "        time.sleep(0.01)\n"
        # keys of their own: under any launcher, a second group may read the addresses of the first
        "for turn in range(6):\n"
        "    store, rank, size = next(dist.rendezvous('env://'))\n"
        "    dist.init_process_group('gloo', store=dist.PrefixStore(f'turn-{turn}', store), rank=rank, world_size=size)\n"
        "    one = torch.tensor([dist.get_rank() + turn])\n"
        "    dist.all_reduce(one)\n"
        "    meet(f'used-{turn}')\n"
        "    dist.destroy_process_group()\n"
        "    meet(f'closed-{turn}')\n"
        "print(one.item())\n"
    )
    assert lockstep_run(*TWO, "again.py") == ["11", "11"]


def test_an_error_under_record_is_told_once_and_first(lockstep_run):
    told = lockstep_run(*TWO, "recorded.py", status=1)
    assert told.startswith("error: rank 1 of 2 on ")
    assert told.count("ValueError: no such data set (0 restarts)\n") == 1
    assert told.count("File") == told.count('recorded.py", line')


def test_an_argument_that_the_script_did_not_want_is_explained_and_can_be_left_out(lockstep_run, here):
    (here / "options.py").write_text("def add(parser):\n    parser.add_argument('--local_rank')\n")
    (here / "plain.py").write_text("import argparse, options\nargparse.ArgumentParser().parse_args()\n")
    told = lockstep_run(*TWO, "plain.py", status=2)
    assert "unrecognized arguments: --local_rank=" in told
    assert "options.py, line 2 defines --local_rank" in told
    assert "--pass-local-rank none" in told
    assert lockstep_run(*TWO, "--pass-local-rank", "none", "plain.py") == []


def test_any_program_is_started_with_a_rank(lockstep_run):
    command = 'echo "$RANK of $WORLD_SIZE, $OMP_NUM_THREADS, $1"'
    lines = lockstep_run(*TWO, "--no-python", "bash", "-c", command, "name", "an argument", env={"OMP_NUM_THREADS": "3"})
    assert lines == ["0 of 2, 3, an argument", "1 of 2, 3, an argument"]


def test_what_a_program_ends_with_is_what_the_launcher_ends_with(lockstep_run):
    assert "ended with status 7" in lockstep_run(*TWO, "--no-python", "bash", "-c", "exit 7", status=7)
