"""The promise itself, on the example of the README: one digest of all state whoever starts its
processes, and with any workers.

And its opposite: with PyTorch's own sum the digests differ, so that these tests could fail.
"""

import json
import os
import socket
import subprocess
import sys

import cells
import pytest

pytestmark = pytest.mark.timeout(120)

SHARDS = 4
# Shards and loader workers of each run, by number of processes: those of one come one after another
# in the same process.
WAYS = {1: [(SHARDS, 0), (SHARDS, 1)], 2: [(SHARDS, 0)], 3: [(SHARDS, 0)]}


def under_torchrun(folder, nproc, wanted):
    """The digests of each rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    command += [cells.__file__, json.dumps(wanted), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(nproc)]


def over_nodes(nursery, folder, sizes, wanted):
    """The same, of launchers that stand for machines, with so many processes on each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
    nodes = []
    try:
        for number, nproc in enumerate(sizes):
            own = ["--nnodes", str(len(sizes)), "--node-rank", str(number), "--nproc", str(nproc)]
            words = [*place, *own, cells.__file__, json.dumps(wanted), str(folder)]
            with (folder / f"node-{number}").open("w") as out:
                nodes.append(nursery.start(words, cwd=folder, stdout=out, stderr=out))
        for number, node in enumerate(nodes):
            assert node.wait(100) == 0, (folder / f"node-{number}").read_text()[-3000:]
    finally:
        for node in nodes:
            node.kill()
            node.wait(10)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(sum(sizes))]


def all_of(by_rank):
    """The digests that all ranks have of all runs."""
    return {digest for digests in by_rank for digest in digests}


@pytest.mark.long
def test_a_number_of_shards_has_one_digest_whoever_starts_the_processes(standing_crew, nursery, tmp_path):
    found = all_of(standing_crew(1, cells.run_cells, WAYS[1]))
    found |= all_of(under_torchrun(tmp_path, 2, WAYS[2]))
    found |= all_of(over_nodes(nursery, tmp_path, (1, 2), WAYS[3]))
    assert len(found) == 1


def test_whoever_asks_for_nothing_gets_the_answer_of_as_many_shards_as_processes(standing_crew):
    found = all_of(standing_crew(2, cells.run_cells, [(None, 0)])) | all_of(standing_crew(1, cells.run_cells, [(2, 0)]))
    assert len(found) == 1


def test_with_pytorchs_own_sum_the_digest_differs_between_world_sizes(standing_crew):
    alone, several = (all_of(standing_crew(n, cells.run_cells, [(SHARDS, 0)], strategy="ddp")) for n in (1, 3))
    assert (len(alone), len(several)) == (1, 1), "the ranks of one run differ"
    assert alone != several
