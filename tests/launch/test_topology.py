"""A machine's cores and GPUs are read off the kernel's files: here, of machines described in files of the same form."""

import os

import pytest

from lockstep.launch.topology import Node, format_cpus, parse_cpus, read_gpu_nodes, read_nodes

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def machine(tmp_path):
    """``machine(nodes, threads)``: files as of a machine with such CPUs in each node, of which so many make a core."""

    def make(nodes, siblings):
        for number, cpus in nodes.items():
            (tmp_path / f"node/node{number}").mkdir(parents=True)
            (tmp_path / f"node/node{number}/cpulist").write_text(f"{cpus}\n")
        for core in siblings:
            for cpu in parse_cpus(core):
                (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
                (tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{core}\n")
        return tmp_path

    return make


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("0,2-3\n", (0, 2, 3))])
def test_the_kernels_way_to_write_cpus_is_read_and_written(text, cpus):
    assert parse_cpus(text) == cpus
    assert format_cpus(cpus) == text.strip()


def test_two_sockets_with_two_threads_a_core(machine):
    root = machine({0: "0-1,4-5", 1: "2-3,6-7"}, ["0,4", "1,5", "2,6", "3,7"])
    assert read_nodes(range(8), root) == (Node(0, ((0, 4), (1, 5))), Node(1, ((2, 6), (3, 7))))
    assert read_nodes(range(8), root)[1].cpus == (2, 3, 6, 7)


def test_only_what_may_be_used_counts(machine):
    root = machine({0: "0-1,4-5", 1: "2-3,6-7", 2: ""}, ["0,4", "1,5", "2,6", "3,7"])
    assert read_nodes({2, 5, 6}, root) == (Node(0, ((5,),)), Node(1, ((2, 6),)))
    assert read_nodes({3}, root) == (Node(1, ((3,),)),)


def test_a_kernel_that_tells_nothing_has_one_node_of_single_cpus(tmp_path):
    assert read_nodes({1, 3}, tmp_path) == (Node(0, ((1,), (3,))),)


def test_this_machine_has_just_the_cpus_that_may_be_used():
    found = [cpu for node in read_nodes(os.sched_getaffinity(0)) for cpu in node.cpus]
    assert sorted(found) == sorted(os.sched_getaffinity(0))


@pytest.fixture
def gpus(tmp_path):
    """Files as of the driver of four GPUs, on nodes 1, 0, 0 and one that is not known; the second is not in this container."""
    places = (("0000:17:00.0", 2, "GPU-aa", "1"), ("0000:2A:00.0", 3, "GPU-bb", "0"), ("0000:31:00.0", 0, "GPU-cc", "0"))
    for bus, minor, uuid, node in (*places, ("0000:ff:00.0", 1, "GPU-ab", "-1")):
        (tmp_path / "gpus" / bus).mkdir(parents=True)
        text = f"Model: \t\t GPU\nIRQ:   \t\t 7\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        (tmp_path / "gpus" / bus / "information").write_text(text)
        (tmp_path / "pci" / bus.lower()).mkdir(parents=True)
        (tmp_path / "pci" / bus.lower() / "numa_node").write_text(f"{node}\n")
    (tmp_path / "dev").mkdir()
    for minor in (0, 1, 2):
        (tmp_path / "dev" / f"nvidia{minor}").touch()
    return {"driver": tmp_path / "gpus", "pci": tmp_path / "pci", "dev": tmp_path / "dev"}


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        (None, (1, 0, None)),
        ("2,0", (None, 1)),
        ("1", (0,)),
        ("", ()),
        ("0,7,1", (1,)),
        ("GPU-cc,GPU-aa", (0, 1)),
        ("MIG-1", ()),
    ],
)
def test_gpus_are_numbered_as_cuda_does_it(gpus, visible, nodes):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert read_gpu_nodes(environ, **gpus) == nodes


def test_without_a_driver_there_are_no_gpus(tmp_path):
    assert read_gpu_nodes({}, driver=tmp_path / "none") == ()
