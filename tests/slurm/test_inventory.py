"""What sinfo says is understood, and a job that could never run is refused with what there is instead."""

import pytest

from lockstep.base.errors import ConfigError
from lockstep.tools.slurm.inventory import check, read_nodes
from lockstep.tools.slurm.request import Request

pytestmark = pytest.mark.timeout(20)

# Two nodes with GPUs, in two partitions with different limits; three without.
SINFO = """\
g1|gpu*|64|512000|gpu:a100:4(S:0-1)|1-00:00:00|idle
g2|gpu*|64|512000|gpu:a100:4(S:0-1)|1-00:00:00|mix
g1|short|64|512000|gpu:a100:4(S:0-1)|1:00:00|idle
g2|short|64|512000|gpu:a100:4(S:0-1)|1:00:00|mix
c1|cpu|32|128000|(null)|infinite|idle
c2|cpu|32|128000|(null)|infinite|drain
c3|cpu|48|128000|gpu:2,gpu:k80:1,license:3|infinite|down*
"""
NODES = read_nodes(SINFO)


def checked(**asked):
    return check(Request(script="train.py", **asked), NODES)


def test_nodes_are_read_with_their_partitions_gpus_limits_and_states():
    first, third = NODES[0], NODES[-1]
    assert (first.name, first.partition, first.is_default, first.cpus, first.memory_mb) == ("g1", "gpu", True, 64, 512000)
    assert (first.gpus, first.limit_min, first.is_usable) == ({"a100": 4}, 24 * 60, True)
    assert (third.gpus, third.limit_min, third.is_usable) == ({"": 2, "k80": 1}, float("inf"), False)
    assert (third.num_gpus(None), third.num_gpus("k80"), third.num_gpus("a100")) == (3, 1, 0)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"nodes": 2, "gpus_per_node": "4", "cpus_per_task": 16, "time": "1-00:00:00", "mem": "500G"},
        {"nodes": 2, "gpus_per_node": "a100:2", "partition": "gpu"},
        {"partition": "cpu", "ntasks_per_node": 32, "time": "30-0"},
        {"partition": "short", "nodelist": "g2", "time": "60"},
        {"partition": "gpu,short", "exclude": "g1", "time": "60"},
    ],
)
def test_a_job_that_fits_is_not_spoken_of(asked):
    assert checked(**asked) == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"partition": "night"}, "--partition night: this cluster has none of that name. Choose one of cpu, gpu, short"),
        ({"nodes": 3}, r"--nodes 3: partition gpu has 2 \(g1, g2\). Ask for fewer"),
        ({"nodes": 2, "exclude": "g1"}, r"--nodes 2: partition gpu has 1 \(g2\)"),
        ({"nodelist": "c1"}, "--nodelist: partition gpu has no c1. It has g1, g2"),
        ({"exclude": "x[1-2]"}, "--exclude: partition gpu has no x1, x2"),
        ({"nodelist": "g1", "exclude": "g1"}, "--nodelist and --exclude both name g1"),
        ({"time": "2-0"}, "--time 2-0: jobs in partition gpu may run for 1-00:00:00 at most"),
        ({"time": "0"}, "--time 0: jobs in partition gpu may run for 1-00:00:00 at most"),
        ({"gpus_per_node": "5"}, "each with 5 GPUs: partition gpu has no such node; the most that one has is 4"),
        ({"gpus_per_node": "h100:1"}, "each with 1 h100 GPU: partition gpu has no such node"),
        ({"partition": "cpu", "nodes": 2, "gpus_per_node": "1"}, "each with 1 GPU: partition cpu has 1 such node;"),
        (
            {"gpus_per_node": "4", "cpus_per_task": 20},
            r"80 CPUs \(4 processes x 20\): .* one has is 64. Ask for fewer with --cpus-per-task",
        ),
        ({"mem": "1T"}, "1T of memory: partition gpu has no such node; the most that one has is 512000 MB"),
        (
            {"gpus_per_node": "5"},
            "choose another partition .cpu: 3 nodes with up to 48 CPUs, 128000 MB, 3 GPUs; gpu: 2 nodes",
        ),
        (
            {"partition": "cpu", "nodelist": "c1", "cpus_per_task": 40},
            "has no such node among c1; the most that one has is 32",
        ),
    ],
)
def test_a_job_that_could_never_run_is_refused_with_what_there_is(asked, words):
    with pytest.raises(ConfigError, match=words):
        checked(**asked)


def test_nodes_that_are_down_are_told_and_waited_for():
    [told] = checked(partition="cpu", nodes=3)
    assert told == "1 of the 3 nodes that the job needs can be used now (c2 drain, c3 down*): it waits for the others"


def test_without_a_default_partition_one_must_be_named():
    nodes = read_nodes(SINFO.replace("*", ""))
    with pytest.raises(ConfigError, match="no default partition: give --partition, one of cpu, gpu, short"):
        check(Request(script="train.py"), nodes)


@pytest.mark.parametrize("line", ["nonsense", "a|b|c|d|e|f|g"])
def test_an_answer_that_is_not_understood_is_shown(line):
    with pytest.raises(ConfigError, match="which cannot be read"):
        read_nodes(line)
