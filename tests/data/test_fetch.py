"""Promises about fetching: what a DataLoader would give, in workers or here, from the streams of
its place."""

import pickle
import random

import numpy
import pytest
import torch
from data_helpers import Noisy, Numbers, same
from threadpoolctl import threadpool_info
from torch.utils.data import DataLoader, Subset, TensorDataset, get_worker_info

from lockstep._data.fetch import FetchPool, Request, SampleFetcher, TableFetcher, choose_fetcher, single_threaded
from lockstep._data.streams import Purpose
from lockstep._world.machine import threads

pytestmark = pytest.mark.timeout(60)


def request(*indices, key=(1, 1, 0), epoch=None):
    return Request(Purpose.FETCH, key, list(indices), epoch)


def fetch(loader, *requests):
    return list(FetchPool(choose_fetcher(0, loader), loader).run(requests))


def table(length=6):
    return TensorDataset(torch.arange(length * 3.0).reshape(length, 3), torch.arange(length))


class Items(Numbers):
    def __getitems__(self, indices):
        return [f"item {index}" for index in indices]


class Shouting(TensorDataset):
    def __getitem__(self, index):
        return ("!", *super().__getitem__(index))


@pytest.mark.parametrize(
    "dataset", [table(), Subset(table(), [5, 3, 1, 0]), Subset(Subset(table(), [5, 3, 1, 0]), range(4))]
)
@pytest.mark.parametrize("indices", [[0], [3, 1, 2], [-1, 0], [torch.tensor(2), numpy.int64(1)]])
def test_whole_batch_fetching_gives_what_the_default_collate_gives(dataset, indices):
    loader = DataLoader(dataset, batch_size=2)
    by_sample = loader.collate_fn([dataset[index] for index in indices])
    assert same(fetch(loader, request(*indices))[0], by_sample)


def test_whole_batch_fetching_is_for_plain_tensors_alone():
    assert isinstance(choose_fetcher(0, DataLoader(table())), TableFetcher)
    assert isinstance(choose_fetcher(0, DataLoader(table(), collate_fn=list)), SampleFetcher)
    assert isinstance(choose_fetcher(0, DataLoader(Shouting(*table().tensors))), SampleFetcher)
    sparse = TensorDataset(torch.eye(3).to_sparse())
    assert isinstance(choose_fetcher(0, DataLoader(sparse)), SampleFetcher)


def test_a_data_set_that_fetches_many_at_once_is_asked_so():
    assert fetch(DataLoader(Items(4), collate_fn=list), request(2, 0)) == [["item 2", "item 0"]]


def test_batches_are_fetched_when_they_are_asked_for_if_there_are_no_workers():
    asked = []

    def requests():
        for step in range(3):
            asked.append(step)
            yield request(0, key=(1, step, 0))

    loader = DataLoader(Numbers(2))
    batches = FetchPool(choose_fetcher(0, loader), loader).run(requests())
    next(batches)
    assert asked == [0]


def test_workers_that_persist_serve_several_passes_also_after_one_was_left():
    loader = DataLoader(Numbers(40), collate_fn=list, num_workers=2, persistent_workers=True)
    pool = FetchPool(choose_fetcher(0, loader), loader)
    left = pool.run(request(i) for i in range(20))
    assert [next(left) for _ in range(3)] == [[0], [1], [2]]
    left.close()
    workers = {worker.pid for worker in pool._workers._iterator._workers}
    for _ in range(2):
        assert list(pool.run(request(i) for i in range(20, 30))) == [[i] for i in range(20, 30)]
    assert {worker.pid for worker in pool._workers._iterator._workers} == workers


@pytest.mark.parametrize("num_workers", [0, 2])
def test_passes_side_by_side_get_what_each_asks_for(num_workers):
    loader = DataLoader(Numbers(40), collate_fn=list, num_workers=num_workers)
    pool = FetchPool(choose_fetcher(0, loader), loader)
    one, other = pool.run(request(i) for i in range(4)), pool.run(request(i) for i in range(20, 24))
    assert list(zip(one, other, strict=True)) == [([i], [i + 20]) for i in range(4)]


class Epochal(Numbers):
    epoch = "unset"

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch


@pytest.mark.parametrize("persistent", [True, False])
def test_set_epoch_reaches_the_copies_of_the_data_set_in_workers(persistent):
    loader = DataLoader(Epochal(4), collate_fn=list, num_workers=1, persistent_workers=persistent)
    pool = FetchPool(choose_fetcher(0, loader), loader)
    for epoch in (0, 1, 5):
        assert list(pool.run([request(0, 1, epoch=epoch)])) == [[epoch, epoch]]


def test_tensors_and_indices_replaced_between_passes_are_those_fetched():
    whole = table(8)
    part = Subset(whole, [0, 1, 2])
    loader = DataLoader(part)
    pool, found = FetchPool(choose_fetcher(0, loader), loader), []
    assert isinstance(pool._fetcher, TableFetcher)

    def one_pass():
        found.extend(labels.tolist() for _, labels in pool.run([request(0, 1)]))

    one_pass()
    part.indices = [4, 5, 6]
    one_pass()
    part.indices[1] = 7
    one_pass()
    whole.tensors = (whole.tensors[0], whole.tensors[1] + 100)
    one_pass()
    part.dataset = [(0, label) for label in range(8)]  # no table any more
    one_pass()
    assert found == [[0, 1], [4, 5], [4, 7], [104, 107], [4, 7]]


def opened(worker):
    get_worker_info().dataset.opened = f"opened in {worker}"


class Opened(Numbers):
    def __getitem__(self, index):
        return self.opened, type(get_worker_info().dataset).__name__


def test_user_code_in_workers_finds_its_own_data_set_there():
    loader = DataLoader(Opened(4), collate_fn=list, num_workers=1, worker_init_fn=opened)
    assert fetch(loader, request(0)) == [[("opened in 0", "Opened")]]


@pytest.mark.parametrize("dataset", [Noisy(4), table(), Subset(table(), [2, 1]), Epochal(4)])
def test_all_that_a_spawned_worker_needs_can_be_pickled(dataset):
    fetcher = choose_fetcher(0, DataLoader(dataset))
    assert same(pickle.loads(pickle.dumps(fetcher))[request(1)], fetcher[request(1)])


def test_pin_memory_without_a_gpu_does_nothing_and_does_not_warn():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    for num_workers in (0, 1):
        loader = DataLoader(table(), pin_memory=True, num_workers=num_workers)
        assert not fetch(loader, request(0))[0][0].is_pinned()


@pytest.mark.cuda
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pin_memory_pins_with_and_without_workers(num_workers):
    assert fetch(DataLoader(table(), pin_memory=True, num_workers=num_workers), request(0))[0][0].is_pinned()


@pytest.mark.cuda
def test_a_table_on_the_gpu_is_fetched_there():
    dataset = TensorDataset(*(tensor.cuda() for tensor in table().tensors))
    assert same(
        [t.cpu() for t in fetch(DataLoader(dataset), request(1, -1))[0]], fetch(DataLoader(table()), request(1, 5))[0]
    )


@pytest.fixture
def two_threads():
    before = torch.get_num_threads(), [(library, library.num_threads) for library in threads.libraries()]
    torch.set_num_threads(2)
    for library in threads.libraries():
        threads.set_number(library, 2)
    yield
    torch.set_num_threads(before[0])
    for library, number in before[1]:
        threads.set_number(library, number)


def numbers():
    """Of PyTorch's threads, BLAS's and OpenMP's: those that differ."""
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


class Threads(Noisy):
    def __getitem__(self, index):
        return sorted(numbers())


def test_samples_are_fetched_with_one_thread_as_in_workers(two_threads):
    with single_threaded():
        assert numbers() == {1}
    with pytest.raises(ZeroDivisionError), single_threaded():
        raise ZeroDivisionError
    assert numbers() == {2}


@pytest.mark.long
@pytest.mark.parametrize("context", [None, "spawn"])
def test_only_fetching_has_one_thread(two_threads, context):
    asked = []

    def requests():  # where the user's sampler is at work
        for index in range(2):
            asked.append(numbers())
            yield request(index)

    like = DataLoader(Threads(4), num_workers=0 if context is None else 1, collate_fn=list, multiprocessing_context=context)
    pool = FetchPool(choose_fetcher(0, like), like)
    assert list(pool.run(requests())) == [[[1]], [[1]]]
    assert asked == [{2}, {2}]
    assert numbers() == {2}


def test_the_streams_of_the_script_are_not_those_of_the_data():
    random.seed(5)
    fetch(DataLoader(Noisy(4)), request(0))
    first = random.random()
    random.seed(6)
    fetch(DataLoader(Noisy(4)), request(0))
    # fetching has moved it: the loader starts the script's stream again afterwards
    assert random.random() == first
