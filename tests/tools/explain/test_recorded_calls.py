"""Collectives that ranks call in different ways, in real processes: named with rank, call and line,
and nothing else is."""

import json
import time

import pytest

from lockstep._base.reports import MISMATCH

pytestmark = pytest.mark.timeout(100)

BEGIN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(8):
    dist.all_reduce(torch.ones(3))
def average(): dist.all_reduce(torch.ones(1000))
def log_metric(): dist.all_reduce(torch.ones(3))
"""
LOOP = """
import sys, time, torch, torch.distributed as dist, lockstep
team = lockstep.join(shards=3)
rank = team.rank
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(120, 4), torch.randn(120, 1))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=6))
for batch in loader:
    for x, y in batch.shards:
        team.backward((model(x) - y).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if team.step == 8:
        {fault}
"""


def mismatches(file):
    """The reports of differing collectives in a file."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [report for report in map(json.loads, lines) if report["kind"] == MISMATCH]


@pytest.fixture
def mismatch_of(run_here, tmp_path):
    """``mismatch_of(source, nproc)``: the one report of differing collectives of a launch, and its
    result."""

    def run(source, nproc):
        file = tmp_path / "reports.jsonl"
        file.unlink(missing_ok=True)
        done = run_here(source, "--nproc-per-node", str(nproc), "--reports", str(file))
        [report] = mismatches(file)
        return report, done

    return run


@pytest.mark.parametrize("nproc", [2, pytest.param(3, marks=pytest.mark.long)])
def test_sizes_that_end_communication_are_named_with_all_ranks_calls_and_lines_whoever_dies(mismatch_of, nproc):
    # Gloo aborts the rank whose buffer is too small, a moment after its call: it writes nothing any
    # more.
    report, done = mismatch_of(f"{BEGIN}\nlog_metric() if rank == 1 else average()\ndist.barrier()", nproc)
    assert done.returncode != 0
    assert report["cause"] == "size"
    assert report["ranks"] == ([0, 1] if nproc == 2 else [1])
    for rank in range(nproc):
        size, function = (3, "log_metric") if rank == 1 else (1000, "average")
        assert f"shape [{size}] of float" in report["calls"][str(rank)]
        assert report["places"][str(rank)].endswith(f"in {function}")


@pytest.mark.long
def test_a_bucket_of_ddp_and_a_call_of_the_script_are_told_apart(mismatch_of):
    ddp = """
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 1))
    for step in range(8):
        model(torch.ones(2, 50)).sum().backward()
        if step == 5 and rank == 0:
            log_metric()
    """
    report, _ = mismatch_of(BEGIN + "\n".join(line[4:] for line in ddp.splitlines()), 2)
    assert report["places"]["0"].endswith("in log_metric")
    assert "shape [3] of float" in report["calls"]["0"]
    assert report["places"]["1"].endswith("in <module>")


FAULTS = {
    "dtype": ("dist.all_reduce(torch.ones(1) if rank else torch.ones(1, dtype=torch.int32))", "of int", "of float"),
    "op": ("dist.all_reduce(torch.ones(1), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)", "op SUM", "op MAX"),
    "size": ("dist.all_reduce(torch.ones(2, 6) if rank else torch.ones(3, 4))", "[3, 4]", "[2, 6]"),
}


@pytest.mark.parametrize("aspect", ["dtype", *(pytest.param(name, marks=pytest.mark.long) for name in ("op", "size"))])
def test_calls_that_give_wrong_numbers_and_no_error_are_reported_when_the_script_has_ended(mismatch_of, aspect):
    fault, *calls = FAULTS[aspect]
    report, done = mismatch_of(f"{BEGIN}\n{fault}", 2)
    assert done.returncode == 0
    assert (report["ranks"], report["cause"]) == ([0, 1], aspect)
    for rank in (0, 1):
        assert calls[rank] in report["calls"][str(rank)]
        assert report["places"][str(rank)].endswith("script.py:10 in <module>")


@pytest.mark.long
def test_they_are_reported_while_a_run_goes_on_and_told_apart_from_calls_of_lockstep(mismatch_of):
    fault = "dist.all_reduce(torch.ones(1, dtype=torch.int32 if rank == 2 else torch.float32)); time.sleep(4)"
    began = time.time()
    report, done = mismatch_of(LOOP.format(fault=fault), 3)
    assert done.returncode == 0
    assert (report["ranks"], report["cause"]) == ([2], "dtype")
    assert report["places"]["2"].endswith("script.py:15 in <module>")
    assert report["time_s"] < began + 60


# Each waits for what never comes, and on rank 0 for another thing than on rank 1: what of that is
# said.
WAITS = {
    "group": (BEGIN, "dist.new_group([0, 1]) if rank else average()", ("all_reduce", "new_group")),
    "source": (BEGIN, "dist.broadcast(torch.ones(4), src=rank)", ("from rank 0", "from rank 1")),
    "message": (BEGIN, "dist.recv(torch.ones(4), src=0) if rank else average()", ("all_reduce", "from rank 0")),
    "source in a loop": (LOOP, "dist.broadcast(torch.ones(4), src=rank)", ("from rank 0", "from rank 1")),
    "group in a loop": (LOOP, "rank and dist.new_group([0, 1])", ("lockstep's", "new_group")),
}


@pytest.mark.long
def test_ranks_that_all_wait_are_told_within_fifteen_seconds_where_each_of_them_does(start_launcher, tmp_path):
    started = {}
    for name, (source, fault, _) in WAITS.items():  # at once: they mostly wait
        script, file = tmp_path / f"{name}.py", tmp_path / f"{name}.jsonl"
        script.write_text(source.format(fault=fault) if source is LOOP else f"{source}\n{fault}\ndist.barrier()")
        words = ("--nproc-per-node", 2, "--reports", file, "--run-dir", tmp_path / f"run of {name}", script)
        started[name] = start_launcher(*words), file
    for name, (launcher, file) in started.items():
        deadline = time.monotonic() + 80
        while not (found := mismatches(file)):
            assert launcher.poll() is None, f"{name}: {launcher.communicate()}"
            assert time.monotonic() < deadline, f"{name}: nothing is reported"
            time.sleep(0.1)
        calls, source = WAITS[name][2], WAITS[name][0]
        assert found[0]["seconds"] < 15, name
        for rank in (0, 1):
            assert calls[rank] in found[0]["calls"][str(rank)], (name, found[0])
            assert f"{name}.py:" in found[0]["places"][str(rank)], (name, found[0])
        line = 15 if source is LOOP else 10
        assert f"{name}.py:{line} " in found[0]["places"]["1"], (name, found[0])


MAY_DIFFER = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.join import Join
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
for step in range(20):
    dist.all_reduce(torch.tensor(1.0) if rank else torch.ones(1))  # a scalar
    dist.all_reduce(torch.ones(2, 3).flatten() if rank else torch.ones(2, 3))
    dist.broadcast(torch.ones(8, dtype=torch.bool if rank == 0 else torch.uint8), src=0)
    dist.gather(torch.ones(1), [torch.ones(1) for _ in range(size)] if rank == 0 else None, dst=0)
    dist.scatter(torch.ones(1), [torch.ones(1) for _ in range(size)] if rank == 0 else None, src=0)
    if rank == 1:
        dist.reduce(torch.ones(1), dst=0, op=dist.ReduceOp(dist.ReduceOp.SUM))
    else:
        dist.reduce(torch.ones(1), 0)
    sizes = [(peer + 1) * (rank + 1) for peer in range(size)]
    dist.all_to_all_single(torch.empty(sum(sizes)), torch.ones(sum(sizes)), sizes, sizes)
    dist.all_gather_object([None] * size, "x" * (rank + 1) * step)
    dist.broadcast_object_list(["x" * step, step] if rank == 0 else [None, None], src=0)
    for group in groups if step % 2 else groups[::-1]:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.all_reduce(torch.ones(1 + dist.get_process_group_ranks(group)[0]), group=group)
            dist.broadcast(torch.ones(1), group=group, group_src=step % 2)
    works = [dist.all_reduce(torch.ones(n + 1), async_op=True) for n in range(4)]
    if rank == 0:
        dist.send(torch.ones(3), dst=1)
    elif rank == 1:
        dist.recv(torch.empty(3), src=0)
    for work in works:
        work.wait()
    if step == 10:
        dist.monitored_barrier()  # of which ranks count different numbers
    try:
        dist.all_reduce("no tensor")
    except Exception:
        pass
model = DistributedDataParallel(torch.nn.Linear(3, 1), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Join([model]):
    for _ in range(3 + rank):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

@torch.compile(backend="eager")
def doubled(x):
    dist.all_reduce(x)
    return x * 2

for n in range(4):
    doubled(torch.ones(2 + n)) if rank else dist.all_reduce(torch.ones(2 + n))
    dist.all_reduce(torch.ones(9))
print("done")
"""


@pytest.mark.long
def test_what_may_differ_between_ranks_is_not_reported(run_here, tmp_path):
    done = run_here(MAY_DIFFER, "--nproc-per-node", "3", "--reports", str(tmp_path / "reports.jsonl"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 3
    assert mismatches(tmp_path / "reports.jsonl") == []


@pytest.mark.long
def test_collectives_are_what_they_were_for_everyone_else(run_here):
    done = run_here(
        """
        import torch, torch.distributed as dist
        from torch.distributed.distributed_c10d import all_reduce as original
        dist.init_process_group("gloo")
        assert dist.all_reduce is original

        @torch.compile(fullgraph=True, backend="eager")
        def doubled(x):
            dist.all_reduce(x)
            return x * 2

        assert doubled(torch.ones(2)).tolist() == [4.0, 4.0]
        print("done", flush=True)
        dist.barrier()  # the first to fail ends the other
        dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2))  # refused by the group's method
        """,
        "--nproc",
        "2",
        env={"LOCKSTEP_TRACEBACK": "full"},
    )
    assert done.stdout.count("done") == 2
    assert "invalid tensor size" in done.stderr
    assert "recorded_calls" not in done.stderr


def test_each_call_has_the_number_that_pytorchs_recorder_gives_it(run_here):
    """Fails first where PyTorch's private names move: the methods of a group, its numbers, the
    recorder."""
    done = run_here(
        """
        import time, torch, torch.distributed as dist
        from lockstep._tools.explain.flight_recorder import read_recording
        from lockstep._tools.explain.recorded_calls import recent_calls
        dist.init_process_group("gloo")
        rank, one, two = dist.get_rank(), torch.ones(1), torch.ones(2)
        dist.all_reduce(two)
        dist.monitored_barrier()
        dist.broadcast(two, src=1)
        (dist.send if rank else dist.recv)(one, 1 - rank)
        dist.reduce(two, dst=1, op=dist.ReduceOp.MAX)
        dist.all_gather([one, one], one)
        dist.gather(one, [one, one] if rank == 0 else None, dst=0)
        dist.all_to_all_single(two, two)
        dist.all_gather_object([None, None], "x")
        dist.all_reduce(two, group=dist.new_group([0, 1]))
        dist.barrier()
        noted = [call for call in recent_calls(20) if call.number]
        recorded = {(group, number): what.partition(" (")[0] for number, what, group in read_recording().recent}
        assert len(noted) == 11, noted
        for call in noted:
            if call.call.kind != "monitored_barrier":
                assert recorded[call.group, call.number] == call.call.kind, (call, recorded)
            assert "script.py:" in call.at
        [reduced] = [call.call for call in noted if call.call.kind == "reduce"]
        assert (reduced.op, reduced.root, reduced.dtype, reduced.shapes) == ("MAX", 1, "float", ((2,),))
        assert [call.via for call in noted].count("all_gather_object") == 2
        print("done")
        """,
        "--nproc",
        "2",
    )
    assert done.stdout.count("done") == 2, done.stderr


def test_a_backend_that_does_not_number_its_collectives_works_as_without_a_launcher(run_here):
    source = """
    import time, torch, torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore
    time.sleep(0.7)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    time.sleep(0.7)
    dist.all_reduce(torch.ones(3))
    dist.send(torch.ones(3), 1)
    dist.recv(torch.ones(3), 1)
    """
    assert run_here(source, "--nproc-per-node", "1").returncode == 0
