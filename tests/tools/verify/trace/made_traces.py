"""Traces that are made by hand."""


def shard_line(step, shard, rank_samples, **fields):
    return {
        "event": "shard",
        "epoch": 0,
        "pass": 0,
        "step": step,
        "phase": 0,
        "part": 0,
        "shard": shard,
        "batches": [{"samples": rank_samples, "content": f"content {step} {shard}"}],
        "losses": [(1.0 / step).hex()],
        "weights": [None],
        "gradients": {"w": f"shard gradient {step} {shard}"},
        **fields,
    }


def step_line(step):
    return {
        "event": "step",
        "epoch": 0,
        "pass": 0,
        "step": step,
        "num_samples": 4,
        "gradients": [{"w": f"gradient {step}", "b": f"gradient of b {step}"}],
        "norms": [(0.5).hex()],
        "weights": {"w": f"weight {step}", "b": f"bias {step}"},
        "buffers": {"mean": f"mean {step}"},
        "state": {"momentum of w": f"momentum {step}", "lr of group 0": "=0.1"},
    }


def trace(world_size=1, num_steps=2, num_shards=2, replacement=False):
    """The lines of every rank of a run that did all right."""
    ranks = []
    for rank in range(world_size):
        start = {"event": "start", "rank": rank, "world_size": world_size, "shards": num_shards, "strategy": "exact"}
        initial = {
            "event": "initial",
            "weights": {"w": "weight 0", "b": "bias 0"},
            "buffers": {"mean": "mean 0"},
            "state": {},
        }
        lines = [start, {"event": "loader", "loader": 1, "length": 8, "replacement": replacement}, initial]
        for step in range(1, num_steps + 1):
            for shard in range(rank * num_shards // world_size, (rank + 1) * num_shards // world_size):
                first = 4 * (step - 1) + 2 * shard
                lines.append(shard_line(step, shard, [first, first + 1]))
            lines.append(step_line(step))
            lines.append({"event": "evaluation", "epoch": 0, "step": step, "values": {"loss": (0.25).hex()}})
        ranks.append([*lines, {**step_line(num_steps), "event": "end"}])
    return ranks
