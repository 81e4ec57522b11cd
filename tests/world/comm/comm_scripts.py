"""Every collective of the team, on each rank."""

import dataclasses

import torch

import lockstep
from lockstep._world.comm.group import default_group, open_sub_group


def _mine(rank, dtype=torch.float32):
    """Rank r's tensor: not contiguous, so that nothing counts on it."""
    return (torch.arange(6, dtype=dtype).view(2, 3) + 10 * rank).t()


def everything():
    """What each collective gave on this rank, and the tensors given to them, which must be as they
    were."""
    with lockstep.join() as team:
        rank, size = team.rank, team.world_size
        last = size - 1
        given = _mine(rank)
        contiguous = _mine(rank).contiguous()
        team.all_reduce(contiguous)
        team.reduce(contiguous, dst=last)
        team.broadcast(contiguous, src=last)
        rows = torch.arange(2.0 * size).view(size, 2) + rank
        found = {
            **{f"all_reduce {op}": team.all_reduce(given, op) for op in ("sum", "mean", "min", "max")},
            "all_reduce product": team.all_reduce(given + 1, "product"),
            "all_reduce integers": team.all_reduce(_mine(rank, torch.int64)),
            "reduce": team.reduce(given, dst=last),
            "reduce mean": team.reduce(given, "mean", dst=0),
            "broadcast": team.broadcast(given, src=last),
            "broadcast to other strides": team.broadcast(given if rank == last else torch.empty(3, 2), src=last),
            "all_gather": team.all_gather(given),
            "gather": team.gather(given, dst=last),
            "scatter": team.scatter(rows if rank == last else None, torch.empty(2), src=last),
            "reduce_scatter": team.reduce_scatter(rows),
            "reduce_scatter mean": team.reduce_scatter(rows, "mean"),
            "reduce_scatter max": team.reduce_scatter(rows, "max"),
            "all_gather_object": team.all_gather_object({"rank": rank}),
            "broadcast_object": team.broadcast_object(("from", rank), src=last),
            "all_gather_rows": {
                dtype: team.all_gather_rows([given[:number].to(dtype) for number in range(rank)])
                for dtype in (torch.float32, torch.bfloat16, torch.bool)
                if size > 1
            },
            "all_gather_rows of one": team.all_gather_rows(given[:1]),
            "any": (team.any(rank == last), team.any(False), team.any(torch.tensor(rank == 0))),
            "barrier": team.barrier(),
        }
        if size > 1:
            if rank == 0:
                team.send(given, 1, tag=3)
            if rank == 1:
                found["recv"] = team.recv(torch.empty(3, 2), 0, tag=3)
        group = team.new_group([last, 0] if size > 1 else [0])
        if group is not None:
            found["group"] = (group.size, group.all_gather(torch.tensor(rank)).tolist())
            found["group root"] = group.broadcast(torch.tensor(rank), src=group.size - 1).item()
        for tensor in (given, contiguous):
            assert torch.equal(tensor, _mine(rank)), "a collective changed the tensor it was given"
        return rank, size, found


def groups_of_their_own():
    """Every collective in one of two groups, and what the members of the other, larger one did
    meanwhile."""
    with lockstep.join() as team:
        groups = [team.new_group(ranks) for ranks in ([3, 1], [0, 2, 4])]
        group = next(group for group in groups if group is not None)
        given = torch.tensor([2.0**team.rank])
        last = group.size - 1
        for _ in range(group.size):  # not the same number of times in both
            group.barrier()
        found = {
            "all_reduce": group.all_reduce(given),
            "reduce": group.reduce(given, dst=last),
            "broadcast": group.broadcast(given, src=last),
            "all_gather": group.all_gather(given).flatten(),
            "gather": group.gather(given, dst=last),
            "scatter": group.scatter([given + number for number in range(group.size)], given, src=last),
            "reduce_scatter": group.reduce_scatter(given.repeat(group.size, 1)),
            "all_gather_object": group.all_gather_object(team.rank),
            "broadcast_object": group.broadcast_object(team.rank, src=last),
            "all_gather_rows": group.all_gather_rows([given, given])[0],
            "any": group.any(team.rank == 4),
        }
        if group.rank == 0:
            group.send(given, dst=last)
        if group.rank == last:
            found["recv"] = group.recv(given, src=0)
        return group.ranks, group.rank, {name: one.tolist() if torch.is_tensor(one) else one for name, one in found.items()}


def mistakes():
    """What each rank was told of arguments that cannot be meant."""
    with lockstep.join() as team:
        one, told = torch.ones(2), []
        group = [team.new_group([0]), team.new_group([1])][team.rank]
        for call in (
            lambda: team.all_reduce(one, "average"),
            lambda: team.broadcast(one, src=2),
            lambda: team.gather(one, dst=-1),
            lambda: team.reduce_scatter(torch.ones(3, 2)),
            lambda: team.new_group([0, 0]),
            lambda: team.new_group([]),
            lambda: team.new_group([0, 5]),
            lambda: team.all_reduce(torch.ones(2, dtype=torch.int64), "mean"),
            lambda: group.new_group([0]),
            lambda: team.all_gather_rows([]),
            lambda: team.all_gather_rows([torch.ones(2, 3)] if team.rank else [torch.ones(2, 2)]),
            lambda: team.all_gather_rows(torch.tensor(1.0)),
        ):
            try:
                call()
            except (lockstep.ConfigError, lockstep.UsageError) as error:
                told.append(error.code)
        return told


def gradients_do_not_travel():
    """A tensor that has a gradient can be given, and what comes back has none."""
    with lockstep.join() as team:
        weight = torch.ones(2, requires_grad=True)
        rows, _ = team.all_gather_rows([weight * 2])
        return [team.all_reduce(weight * 2).requires_grad, team.broadcast(weight).requires_grad, rows.requires_grad]


def ask_for_a_rank_that_never_comes():
    with lockstep.join(timeout_s=2.0) as team:
        if team.rank == 0:
            team.barrier()
        else:
            import time

            time.sleep(30)


def timeouts(timeout_s):
    """How long the run's group, and one of some ranks, wait for a rank, in seconds."""
    with lockstep.join(timeout_s=timeout_s) as team:
        return [_timeout(group) for group in (default_group(), team.new_group([0]).group)]


def _timeout(group):
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def timeouts_of_devices(timeout_s):
    """How long groups of some ranks wait whose tensors are on devices, or on the CPU though the
    run's are on devices. (The device here is the CPU, and its backend Gloo, which has NCCL's call.)
    """
    with lockstep.join(timeout_s=timeout_s) as team:
        transport = dataclasses.replace(team._transport, backend="of devices")
        return [_timeout(open_sub_group([0], transport, backend)) for backend in (None, "gloo")]
