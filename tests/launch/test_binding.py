"""Processes are bound to cores of their own, close to their GPUs, on machines of any shape; and really are."""

import ast
import itertools
import os
import subprocess
import sys

import pytest

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError
from lockstep.launch.binding import bind_here, plan_binding
from lockstep.launch.topology import Node, read_nodes

pytestmark = pytest.mark.timeout(60)
NOBODY = (None,)
CORES = len(os.sched_getaffinity(0))


def machine(*cores, threads=1):
    """Nodes of so many cores each; the second thread of each core is numbered after all first ones, as on real machines."""
    first, total = itertools.count(), sum(cores)
    return [
        Node(
            number, tuple(tuple(cpu + thread * total for thread in range(threads)) for cpu in itertools.islice(first, count))
        )
        for number, count in enumerate(cores)
    ]


BIG = machine(64, 64, threads=2)
"""Two sockets of 64 cores with two threads each."""
SHAPES = {
    "laptop": machine(4),
    "big": BIG,
    "eight nodes": machine(*[16] * 8),
    "cut by a cgroup": machine(2, 6),
    "a core here and there": [Node(0, ((7,),)), Node(3, ((40, 104), (41,)))],
}


def plan(kind, nodes, near):
    return plan_binding(kind, nodes, near, sum(len(node.cpus) for node in nodes))


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, 7, 8, 16])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_process_has_cores_of_its_own_on_one_node_if_possible(shape, nproc):
    nodes = SHAPES[shape]
    every_cpu = sorted(cpu for node in nodes for cpu in node.cpus)
    if nproc > len(every_cpu):
        with pytest.raises(ConfigError, match="each needs one of its own"):
            plan("cores", nodes, NOBODY * nproc)
        return
    found = plan("cores", nodes, NOBODY * nproc)
    dealt = [cpu for cpus in found.cpus for cpu in cpus]
    assert all(found.cpus)
    assert len(dealt) == len(set(dealt))
    assert set(dealt) <= set(every_cpu)
    for own, cpus in zip(found.nodes, found.cpus, strict=True):
        assert set(cpus) <= {cpu for node in nodes if node.number in own for cpu in node.cpus}
        assert len(own) == 1 or nproc < len(nodes)


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, 7, 8, 16, 128])
def test_on_equal_nodes_nothing_is_left_over_and_the_threads_of_a_core_stay_together(nproc):
    found = plan("cores", BIG, NOBODY * nproc)
    assert sorted(cpu for cpus in found.cpus for cpu in cpus) == list(range(256))
    assert all({cpu % 128 for cpu in cpus} == {cpu for cpu in cpus if cpu < 128} for cpus in found.cpus)
    sizes = [len(cpus) for cpus in found.cpus]
    assert max(sizes) <= 2 * min(sizes) + 2


def test_with_more_processes_than_cores_the_threads_of_a_core_are_dealt_out():
    found = plan("cores", BIG, NOBODY * 256)
    assert sorted(found.cpus) == [(cpu,) for cpu in range(256)]


def test_a_small_rest_of_a_node_is_left_alone_if_that_gives_the_slowest_process_more():
    assert plan("cores", SHAPES["cut by a cgroup"], NOBODY * 2).cpus == ((2, 3, 4), (5, 6, 7))
    assert plan("cores", SHAPES["cut by a cgroup"], NOBODY * 4).cpus == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_eight_processes_on_two_big_sockets():
    found = plan("cores", BIG, NOBODY * 8)
    assert found.nodes == ((0,),) * 4 + ((1,),) * 4
    assert found.cpus[0] == (*range(16), *range(128, 144))
    assert found.cpus[7] == (*range(112, 128), *range(240, 256))
    assert "rank 7 is bound to CPUs 112-127,240-255 (NUMA node 1)" in str(found)


def test_a_whole_node_is_shared_by_the_processes_on_it():
    found = plan("numa", BIG, NOBODY * 4)
    assert found.nodes == ((0,), (0,), (1,), (1,))
    assert found.cpus[1] == BIG[0].cpus
    assert found.cpus[2] == BIG[1].cpus


def test_fewer_processes_than_nodes_have_several_each():
    assert plan("numa", SHAPES["eight nodes"], NOBODY * 3).nodes == ((0, 1), (2, 3, 4), (5, 6, 7))
    assert "NUMA nodes 2-4" in str(plan("cores", SHAPES["eight nodes"], NOBODY * 3))


def test_a_process_is_close_to_its_gpu():
    near = (1, 1, 0, 0)
    assert plan("numa", BIG, near).nodes == ((1,), (1,), (0,), (0,))
    found = plan("cores", BIG, near)
    assert found.nodes == ((1,), (1,), (0,), (0,))
    assert set(found.cpus[0]).isdisjoint(found.cpus[1])
    assert plan("numa", BIG, (1,)).nodes == ((1,),), "also a lone one"
    assert plan("numa", BIG, (None, 0, 0)).nodes == ((1,), (0,), (0,)), "others go where there is room"
    assert plan("numa", BIG, (9, 1, 1)).nodes == ((0,), (1,), (1,)), "a node that may not be used is nobody's"


def test_auto_takes_what_fits():
    assert plan("auto", SHAPES["laptop"], NOBODY * 4).kind == "cores"
    assert plan("auto", SHAPES["laptop"], NOBODY * 5) is None
    assert plan("auto", machine(2, 2), NOBODY * 5).kind == "numa"


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="unknown binding 'socket': choose one of none, auto, cores, numa"):
        bind_here("socket", 2, RunConfig())


SCRIPT = """
import os, torch, lockstep
from torch.utils.data import DataLoader, Dataset

class Where(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return torch.tensor(sorted(os.sched_getaffinity(0)))

team = lockstep.join()
(loaded,) = DataLoader(Where(), num_workers=1)
print([team.rank, sorted(os.sched_getaffinity(0)), loaded[0].tolist(), team.config.threads, torch.get_num_threads()])
"""


def told(done):
    assert done.returncode == 0, done.stderr
    return sorted(ast.literal_eval(line) for line in done.stdout.splitlines())


@pytest.fixture
def two_cores(require):
    require("cores", None if CORES >= 2 else "two processes with a core each need two cores")


@pytest.mark.usefixtures("two_cores")
def test_workers_and_their_loaders_are_bound_and_the_number_of_threads_does_not_depend_on_it(run_here):
    free = told(run_here(SCRIPT, "--nproc-per-node", "2", "--device", "cpu"))
    done = run_here(SCRIPT, "--nproc-per-node", "2", "--device", "cpu", "--bind", "cores", "--fresh")
    bound = told(done)
    assert [set(own) for _, own, *_ in free] == [os.sched_getaffinity(0)] * 2
    assert sorted(bound[0][1] + bound[1][1]) == sorted(os.sched_getaffinity(0))
    for rank, own, loaders, *_ in bound:
        assert loaders == own
        assert f"lockstep: rank {rank} is bound to CPU" in done.stderr
    assert [one[3:] for one in bound] == [one[3:] for one in free] == [[max(1, CORES // 2)] * 2] * 2


@pytest.mark.long
def test_the_limits_of_the_launcher_are_kept(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    only = max(os.sched_getaffinity(0))
    command = [
        sys.executable,
        "-m",
        "lockstep.cli.main",
        "run",
        "--nproc",
        "1",
        "--device",
        "cpu",
        "--bind",
        "cores",
        "script.py",
    ]
    limit = f"import os; os.sched_setaffinity(0, {{{only}}}); os.execv({sys.executable!r}, {command!r})"
    done = subprocess.run(
        [sys.executable, "-c", limit], cwd=tmp_path, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL
    )
    assert [one[:3] for one in told(done)] == [[0, [only], [only]]]


def test_more_processes_than_cores_are_refused_before_anything_starts(run_here):
    done = run_here("", "--nproc-per-node", str(CORES + 1), "--bind", "cores")
    assert done.returncode == 2
    assert "Start fewer processes, or use --bind numa" in done.stderr


@pytest.mark.skipif(len(read_nodes(os.sched_getaffinity(0))) > 1, reason="this machine has several NUMA nodes to bind to")
def test_auto_binds_nobody_where_there_are_too_few_cores_and_says_so(run_here):
    source = "import os; print(sorted(os.sched_getaffinity(0)))"
    done = run_here(source, "--nproc-per-node", str(CORES + 1), "--bind", "auto")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(sorted(os.sched_getaffinity(0)))] * (CORES + 1)
    assert "lockstep: processes are not bound: there are fewer cores than processes" in done.stderr


def where():
    return sorted(os.sched_getaffinity(0))


@pytest.mark.usefixtures("two_cores")
def test_launch_binds_as_well(capfd):
    import lockstep
    from lockstep.launch.server import drop_server

    try:
        found = lockstep.launch(where, nproc=2, bind="cores")
    finally:
        drop_server()
    assert sorted(found[0] + found[1]) == sorted(os.sched_getaffinity(0))
    assert "lockstep: rank 1 is bound to CPU" in capfd.readouterr().err
