"""What a run says of its passes: how long they were, and what ranks used without the warm-up."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._events.history import read_events
from lockstep._events.measure.passes import merge_passes

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def train(num_samples, left_after):
    with lockstep.join(run_dir="run", shards=2) as team:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(TensorDataset(torch.ones(num_samples, 2)), 4))
        for _ in team.epochs(2):
            for number, batch in enumerate(loader, start=1):
                for (x,) in batch.shards:
                    team.backward(model(x).mean())
                optimizer.step()
                optimizer.zero_grad()
                if number == left_after:
                    break


@pytest.mark.parametrize(
    ("num_samples", "left_after", "steps", "steady"),
    [
        (4 * 30 + 2, None, 31, 10),  # the first ten, in which libraries choose kernels and workers start
        (4 * 8, None, 8, 4),  # half of a short pass
        (4 * 30, 3, 3, 3),  # all of a pass that was left in its warm-up
    ],
)
def test_of_the_first_pass_the_warm_up_is_left_out_and_nothing_of_later_ones(
    crew, tmp_path, num_samples, left_after, steps, steady
):
    crew(2, train, num_samples, left_after)
    num_samples = min(num_samples, 4 * steps)
    first, second = (event for event in read_events(tmp_path / "run") if event["event"] == "epoch")
    for event, warm_up in ((first, steady), (second, 0)):
        assert (event["num_steps"], event["num_samples"]) == (steps, num_samples)
        assert (event["steady_steps"], event["steady_samples"]) == (steps - warm_up, num_samples - 4 * warm_up)
        assert event["steady_s"] <= event["wall_s"]
        assert (event["steady_s"] > 0) == (max(event["cpu_s"]) > 0) == (steps > warm_up)
        assert [len(event[name]) for name in ("cpu_s", "peak_rss_bytes", "split")] == [2, 2, 2]


def test_what_some_ranks_cannot_tell_is_told_of_the_others():
    used = {"wall_s": 1.0, "cpu_s": 2.0, "peak_rss_bytes": 3, "peak_gpu_bytes": None, "gpu_utilisation": 50.0, "split": {}}
    merged = merge_passes([used, {**used, "wall_s": 9.0, "gpu_utilisation": None}])
    assert (merged["wall_s"], merged["peak_gpu_bytes"], merged["gpu_utilisation"]) == (1.0, None, [50.0, None])
