"""Ranks that call one collective in different ways: a silent wrong number is an error, in unchanged scripts."""

import re

import pytest

pytestmark = pytest.mark.timeout(100)

FAULTY = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    mine = torch.ones(1) if rank else torch.ones(1, dtype=torch.int32)
    for step in range(5):
        dist.all_reduce(torch.ones(3))
    {fault}
    {after}
    print("rank", rank, "came to its end")
"""

# What is called on both ranks, and what must be said.
FAULTS = {
    "dtype": ("dist.all_reduce(mine)", "int32", "float32"),
    "shape": ("dist.all_reduce(torch.ones(2, 6) if rank else torch.ones(3, 4))", r"\[2, 6\]", r"\[3, 4\]"),
    "default op": ("dist.all_reduce(torch.ones(1), **({'op': dist.ReduceOp.AVG} if rank else {}))", "op AVG", "op SUM"),
    "root of a group": ("dist.broadcast(torch.ones(1), group=pair, group_src=rank)", "from rank 1", "process group 1"),
    "kind": ("(dist.all_reduce if rank else dist.barrier)(*[torch.ones(1)][:rank])", "all_reduce", "barrier"),
    "object collectives": ("box = [1]; dist.broadcast_object_list(box, src=rank)", "from rank 1", "from rank 0"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name if name != "kind" else pytest.param(name, marks=pytest.mark.longest) for name in FAULTS]
)
def test_a_collective_that_ranks_call_in_different_ways_is_an_error_with_both_calls_and_lines(run_here, name):
    fault, *said = FAULTS[name]
    done = run_here(FAULTY.format(fault=fault, after=""), "--nproc", "2")
    assert done.returncode == 1
    error = done.stderr[done.stderr.index("error:") :]
    for rank in (0, 1):
        assert re.search(rf"rank {rank}: .*\.py:9 in <module>", error), error
    for each in said:
        assert re.search(each, error), error


@pytest.mark.long
def test_it_ends_a_script_that_goes_on(run_here):
    fault = FAULTS["dtype"][0]
    done = run_here(FAULTY.format(fault=fault, after="while True: dist.all_reduce(torch.ones(3))"), "--nproc", "2")
    assert done.returncode == 1
    assert "all_reduce of int32 [1]" in done.stderr
    assert "came to its end" not in done.stdout


@pytest.mark.long
def test_three_ranks_in_a_run_of_lockstep_are_told_apart_from_its_own_calls(run_here):
    done = run_here(
        """
        import torch, torch.distributed as dist, lockstep
        team = lockstep.join(shards=3)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.randn(240, 4), torch.randn(240, 1))
        model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=6))
        for batch in loader:
            for x, y in batch.shards:
                team.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            if team.step == 12:
                dist.all_reduce(torch.ones(1, dtype=torch.int32 if team.rank == 2 else torch.float32))
        """,
        "--nproc",
        "3",
    )
    assert done.returncode == 1
    assert re.search(r"ranks 0 and 1: all_reduce of float32 \[1\], op SUM, at .*\.py:14", done.stderr), done.stderr
    assert re.search(r"rank 2: all_reduce of int32 \[1\], op SUM, at .*\.py:14", done.stderr), done.stderr


@pytest.mark.long
def test_what_may_differ_between_ranks_is_no_error(run_here):
    done = run_here(
        """
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
            objects = [None] * size
            dist.all_gather_object(objects, "x" * (rank + 1) * step)
            box = ["x" * step, step] if rank == 0 else [None, None]
            dist.broadcast_object_list(box, src=0)
            for group in (groups if step % 2 else groups[::-1]):
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
        print("done")
        """,
        "--nproc",
        "3",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 3
    assert "mismatch" not in done.stderr


@pytest.mark.long
def test_collectives_are_what_they_were_for_everyone_else(run_here):
    done = run_here(
        """
        import inspect, pickle, torch, torch.distributed as dist
        from torch.distributed.distributed_c10d import all_reduce as original
        dist.init_process_group("gloo")
        assert pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
        assert inspect.signature(dist.all_reduce) == inspect.signature(original)
        assert dist.all_reduce.__doc__ == original.__doc__

        @torch.compile(fullgraph=True, backend="eager")
        def doubled(x):
            dist.all_reduce(x)
            return x * 2

        assert doubled(torch.ones(2)).tolist() == [4.0, 4.0]
        print("done")
        """,
        "--nproc",
        "2",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done") == 2


@pytest.mark.long
def test_a_rank_that_pickles_an_object_for_a_collective_does_not_wait(run_here):
    done = run_here(
        """
        import pickle, sys, threading, time, torch, torch.distributed as dist
        from lockstep.tools.explain.frames import stack_of
        from lockstep.tools.explain.sampler import is_communicating
        dist.init_process_group("gloo")
        seen, is_over, main = set(), threading.Event(), threading.main_thread().ident

        def look():
            while not is_over.is_set():
                stack = stack_of(sys._current_frames()[main])
                if stack[0][2] in ("_object_to_tensor", "_tensor_to_object"):
                    seen.add(is_communicating(stack))
                time.sleep(0.001)

        looking = threading.Thread(target=look)
        looking.start()
        deadline = time.monotonic() + 60
        while not seen and time.monotonic() < deadline:
            dist.broadcast_object_list([list(range(200_000))], src=0)
        is_over.set()
        looking.join()
        assert seen == {False}, seen
        print("done")
        """,
        "--nproc",
        "1",
    )
    assert done.returncode == 0, done.stderr
