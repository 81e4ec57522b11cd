"""The promise itself, on the examples: one digest of all state at every number of processes, of workers, and launcher.

By default, without a strategy; with ``exact``, which it stands for, where ``CELLS`` says so.

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

# Model, shards, loader workers and strategy (with ``auto`` the script gives none), by number of processes: each value meets
# those of the others somewhere, and each model and number of shards has its digest from several numbers of processes.
CELLS = {
    1: [("digits", 8, 0, "auto"), ("digits", 4, 2, "exact"), ("transformer", 6, 0, "exact"), ("transformer", 8, 2, "auto")],
    2: [("digits", 4, 0, "auto"), ("transformer", 6, 2, "exact")],
    3: [("digits", 8, 2, "exact"), ("transformer", 6, 0, "auto")],
    4: [("digits", 8, 0, "auto"), ("transformer", 6, 0, "auto")],
    8: [("transformer", 8, 0, "exact")],
}
# What other launchers run: model and loader workers, by number of processes.
WAYS = {
    1: [("digits", 0), ("transformer", 2), ("digits", 0)],  # one of them twice in one process
    2: [("digits", 2), ("transformer", 2)],
    3: [("digits", 0), ("transformer", 0)],
}


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


def compare(by_cell, wanted, by_rank):
    """Note the digest of each cell by what may make a difference: its model and number of shards."""
    for digests in by_rank:
        for (model, shards, _workers, _strategy), digest in zip(wanted, digests, strict=True):
            by_cell.setdefault((model, shards), set()).add(digest)


@pytest.mark.long
def test_four_shards_have_one_digest_whoever_starts_their_processes(standing_crew, nursery, tmp_path):
    found = {}
    plans = {nproc: [(model, 4, workers, "auto") for model, workers in WAYS[nproc]] for nproc in WAYS}
    compare(found, plans[1], standing_crew(1, cells.run_cells, plans[1]))
    compare(found, plans[2], under_torchrun(tmp_path, 2, plans[2]))
    compare(found, plans[3], over_nodes(nursery, tmp_path, (1, 2), plans[3]))
    assert {cell: len(digests) for cell, digests in found.items()} == dict.fromkeys(found, 1)
    assert len(set.union(*found.values())) == 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_model_and_a_number_of_shards_have_one_digest_on_any_number_of_processes(standing_crew):
    found = {}
    for nproc, wanted in CELLS.items():
        compare(found, wanted, standing_crew(nproc, cells.run_cells, wanted))
    assert {cell: len(digests) for cell, digests in found.items()} == dict.fromkeys(found, 1)
    assert len(set.union(*found.values())) == 4, "other shards, other answers"


@pytest.mark.parametrize("model", cells.MODELS)
def test_whoever_asks_for_nothing_gets_the_answer_of_as_many_shards_as_processes(standing_crew, model):
    found = {}
    for nproc, shards in ((2, None), (1, 2)):
        compare(found, [(model, 2, 0, "auto")], standing_crew(nproc, cells.run_cells, [(model, shards, 0, "auto")]))
    assert len(found[model, 2]) == 1


def test_with_pytorchs_own_sum_the_same_cell_differs_between_world_sizes(standing_crew):
    by_world_size = [standing_crew(nproc, cells.run_cells, [("digits", 4, 0, "ddp")]) for nproc in (1, 3)]
    digests = [{digest for [digest] in by_rank} for by_rank in by_world_size]
    assert [len(by_rank) for by_rank in digests] == [1, 1], "the ranks of one run differ"
    assert len(set.union(*digests)) == 2


def test_plain_distributed_data_parallel_differs_between_world_sizes(crew, tmp_path):
    digests = [set(crew(nproc, cells.train_with_plain_ddp, str(tmp_path))) for nproc in (1, 2)]
    assert [len(by_rank) for by_rank in digests] == [1, 1]
    assert len(set.union(*digests)) == 2
