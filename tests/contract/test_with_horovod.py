"""The contract with Horovod's sum in the place of PyTorch's: the answer of one process, up to rounding."""

import pytest
import tasks
import torch
from horovod_helpers import horovod
from test_same_answer import assert_same

__all__ = ["horovod"]  # a fixture
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("horovod")]
# Those in which gradients reach Horovod in another way. (What stands between them is the strategy's no more than the others'.)
UNUSUAL = [
    tasks.train_thawed,
    tasks.backward_twice_through_batch_norm,
    tasks.train_code_book,
    tasks.train_shared,
    tasks.freeze_in_the_shards,
]
MODELS = [tasks.Net, tasks.ChannelsLast, tasks.BFloat16]


def run_both(crew, standing_crew, shards, task, *args, nprocs=(3,), **settings):
    """What one process gives, and what each number of processes with Horovod does, whose ranks agree to the bit."""
    (alone,) = standing_crew(1, task, *args, shards=shards, strategy="single", **settings)
    results = []
    for nproc in nprocs:
        by_rank = crew(nproc, task, *args, shards=shards, strategy="horovod", **settings)
        for other in by_rank[1:]:
            assert_same(by_rank[0]["state"], other["state"], tolerance=0)
        results.append(by_rank)
    return alone, results


def assert_as_alone(crew, standing_crew, *args, tolerance=2e-5, **settings):
    alone, results = run_both(crew, standing_crew, *args, **settings)
    for by_rank in results:
        assert_same(alone["state"], by_rank[0]["state"], tolerance)


@pytest.mark.parametrize("length", [1, 17])
def test_ragged_ends_and_ranks_without_samples(crew, standing_crew, length):
    assert_as_alone(crew, standing_crew, 4, tasks.classify, tasks.Plain, length, 16)


def test_two_models_and_their_losses(crew, standing_crew):
    assert_as_alone(crew, standing_crew, 3, tasks.train_gan, 34, 12)


def test_sparse_gradients(crew, standing_crew):
    assert_as_alone(crew, standing_crew, 3, tasks.train_sparse, 34, 12)


def test_parameters_that_only_some_shards_use_need_no_setting(crew, standing_crew):
    alone, results = run_both(crew, standing_crew, 4, tasks.train_unused, 64, 8)
    assert len({tuple(names) for names in alone["without"]}) > 1, "no step leaves the other layer out: a weak test"
    for by_rank in results:
        assert_same(alone["state"], by_rank[0]["state"])
        assert all(one["without"] == alone["without"] for one in by_rank)


def test_weights_of_shards(crew, standing_crew):
    assert_as_alone(crew, standing_crew, 4, tasks.classify, tasks.Net, 56, 16, 2, 0, "end", False, True, nprocs=(2,))


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_every_model(crew, standing_crew, kind):
    assert_as_alone(crew, standing_crew, 4, tasks.classify, kind, 56, 16, tolerance=0.02 if kind is tasks.BFloat16 else 2e-5)


@pytest.mark.long
@pytest.mark.parametrize("task", UNUSUAL)
def test_unusual_loops(crew, standing_crew, task):
    assert_as_alone(crew, standing_crew, 3, task, 34, 12)


@pytest.mark.long
def test_accumulated_batches_and_autocast(crew, standing_crew):
    assert_as_alone(crew, standing_crew, 4, tasks.classify, tasks.Net, 56, 8, accumulate=2)
    assert_as_alone(
        crew, standing_crew, 2, tasks.classify, tasks.Plain, 40, 16, nprocs=(2,), precision="bf16-mixed", tolerance=2e-4
    )


def spectrum():
    """Complex weights."""
    import lockstep

    team = lockstep.join()
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))
    model.forward = lambda x: (x * model.weight).abs().square().sum()
    data = torch.utils.data.TensorDataset(torch.arange(24.0).reshape(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 4))
    for batch in loader:
        for (inputs,) in batch.shards:
            team.backward(model(inputs + 1j), reduction="sum")
        optimizer.step()
        optimizer.zero_grad()
    return {"state": {"weight": torch.view_as_real(model.weight.detach().clone())}}


def test_complex_weights(crew, standing_crew):
    assert_as_alone(crew, standing_crew, 2, spectrum, nprocs=(2,))
