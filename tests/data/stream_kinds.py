"""Streams of all kinds, each of the numbers 0 to 41 in some order, for tests of what follows a
resume."""

import importlib.util
import io
import os
import random
import tarfile

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset

NUM_SAMPLES, BATCH = 42, 5


class Plain(IterableDataset):
    def __iter__(self):
        return iter(range(NUM_SAMPLES))


class Shuffled(IterableDataset):
    """A shuffle buffer of 12. ``draw``: a number below another."""

    def __init__(self, draw=random.randrange):
        self.draw = draw

    def __iter__(self):
        waiting = []
        for number in range(NUM_SAMPLES):
            waiting.append(number)
            if len(waiting) == 12:
                yield waiting.pop(self.draw(12))
        while waiting:
            yield waiting.pop(self.draw(len(waiting)))


def of_the_system(below):
    return int.from_bytes(os.urandom(8), "little") % below


class SeedsOfItsOwn(IterableDataset):
    """Another order in each pass, from a generator of its own."""

    def __init__(self):
        self.generator = random.Random(3)

    def __iter__(self):
        return iter(self.generator.sample(range(NUM_SAMPLES), NUM_SAMPLES))


class MadeInTheFirstPass(IterableDataset):
    def __init__(self):
        self.generator = None

    def __iter__(self):
        self.generator = self.generator or random.Random(3)
        return iter(self.generator.sample(range(NUM_SAMPLES), NUM_SAMPLES))


class MadeInEachPass(IterableDataset):
    passes = 0

    def set_epoch(self, epoch):
        self.passes = epoch

    def __iter__(self):
        self.generator = numpy.random.default_rng(self.passes)
        return iter(self.generator.permutation(NUM_SAMPLES).tolist())


class Mapped(IterableDataset):
    """Another stream, each sample of which a function is given."""

    def __init__(self, samples, function):
        self.samples, self.function = samples, function

    def __iter__(self):
        return map(self.function, self.samples)


class Order:
    def __init__(self):
        self.generators = {"one": torch.Generator().manual_seed(3)}

    def draw(self, below):
        return int(torch.randint(below, (), generator=self.generators["one"]))


def of_a_variable():
    generator = random.Random(3)

    def draw(below):
        return generator.randrange(below)

    return draw


class OfTheEpoch(IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(NUM_SAMPLES), NUM_SAMPLES))


class GoesOn(IterableDataset):
    """With a state. A pass that is left early is gone on with by the next."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class StartsOver(GoesOn):
    """With a state, from which only the next pass begins."""

    def __init__(self):
        self.position = self.begin = 0

    def __iter__(self):
        begin, self.begin = self.begin, 0
        for number in range(begin, NUM_SAMPLES):
            self.position = number + 1
            yield number

    def load_state_dict(self, state):
        self.position = self.begin = state["position"]


class Buffered(StartsOver):
    """A shuffle buffer, which its state leaves out."""

    def __init__(self, draw=random.randrange):
        super().__init__()
        self.draw = draw

    def __iter__(self):
        waiting = []
        for number in super().__iter__():
            waiting.append(number)
            if len(waiting) == 12:
                yield waiting.pop(self.draw(12))
        while waiting:
            yield waiting.pop(self.draw(len(waiting)))


class Batches(IterableDataset):
    """Ready batches of a stream, some without samples."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        numbers = list(self.samples)
        for first in range(0, NUM_SAMPLES, BATCH):
            yield torch.tensor(numbers[first : first + BATCH])
            yield torch.tensor([], dtype=torch.int64)


class Iterable:
    """Ready batches that are no data set."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(Batches(self.samples))


def hugging_face(tmp_path, **shuffling):
    import datasets

    stream = datasets.Dataset.from_dict({"x": list(range(NUM_SAMPLES))}).to_iterable_dataset(num_shards=3)
    stream = stream.shuffle(**shuffling) if shuffling else stream
    return DataLoader(stream, BATCH, collate_fn=lambda rows: [row["x"] for row in rows])


def shards(tmp_path):
    """Tar files with the samples of a WebDataset."""
    paths = [tmp_path / f"{shard}.tar" for shard in range(3)]
    for shard, path in enumerate(paths):
        if not path.exists():
            with tarfile.open(path, "w") as file:
                for number in range(shard, NUM_SAMPLES, 3):
                    member = tarfile.TarInfo(f"{number:03}.cls")
                    member.size = len(str(number))
                    file.addfile(member, io.BytesIO(str(number).encode()))
    return [str(path) for path in paths]


def web_dataset(tmp_path, *stages):
    import webdataset

    stream = webdataset.WebDataset(shards(tmp_path), shardshuffle=False, nodesplitter=None)
    for stage in stages:
        stream = stream.compose(stage(webdataset))
    return DataLoader(stream.decode().to_tuple("cls"), BATCH, collate_fn=lambda rows: [row[0] for row in rows])


def pipeline(tmp_path):
    """Also the tar files are shuffled."""
    import webdataset

    stream = webdataset.DataPipeline(
        webdataset.SimpleShardList(shards(tmp_path)),
        webdataset.shuffle(4, initial=4, rng=random),
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(12, initial=12, rng=random),
        webdataset.decode(),
        webdataset.to_tuple("cls"),
    )
    return DataLoader(stream, BATCH, collate_fn=lambda rows: [row[0] for row in rows])


def plainly(make, *args):
    return lambda tmp_path: DataLoader(make(*args), BATCH, collate_fn=list)


REPEATING = {
    "plain": plainly(Plain),
    "shuffled": plainly(Shuffled),
    "of the epoch": plainly(OfTheEpoch),
    "a generator of its own": plainly(SeedsOfItsOwn),
    "a generator made in the first pass": plainly(MadeInTheFirstPass),
    "a generator made in each pass": plainly(MadeInEachPass),
    "a generator two streams down": lambda tmp_path: plainly(Mapped, Mapped(SeedsOfItsOwn(), int), int)(tmp_path),
    "a generator of another object": lambda tmp_path: plainly(Shuffled, Order().draw)(tmp_path),
    "a generator of a function": lambda tmp_path: plainly(Shuffled, of_a_variable())(tmp_path),
    "a state, goes on": plainly(GoesOn),
    "a state, starts over": plainly(StartsOver),
    "a state without the buffer": plainly(Buffered),
    "ready": lambda tmp_path: DataLoader(Batches(Shuffled()), batch_size=None),
    "ready, no data set": lambda tmp_path: Iterable(Shuffled()),
    "ready, a generator two streams down": lambda tmp_path: DataLoader(Batches(SeedsOfItsOwn()), batch_size=None),
    "ready, no data set, a generator of a stream": lambda tmp_path: Iterable(SeedsOfItsOwn()),
    "ready, no data set, a generator of another object": lambda tmp_path: Iterable(Shuffled(Order().draw)),
    "Hugging Face": hugging_face,
    "Hugging Face, shuffled": lambda tmp_path: hugging_face(tmp_path, seed=5, buffer_size=12),
    "Hugging Face, files shuffled": lambda tmp_path: hugging_face(tmp_path, seed=5, buffer_size=1),
    "WebDataset": web_dataset,
    "WebDataset, a pipeline": pipeline,
    "WebDataset, a seed": lambda tmp_path: web_dataset(tmp_path, lambda it: it.shuffle(12, initial=12, seed=5)),
    "WebDataset, random": lambda tmp_path: web_dataset(tmp_path, lambda it: it.shuffle(12, initial=12, rng=random)),
}
"""Those that give the same samples again, if they are asked to."""
INCOMPLETE = ("a state without the buffer", "Hugging Face, shuffled")
"""Those of them whose state is not enough for it."""
OTHERWISE = {
    "shuffled by the system": plainly(Shuffled, of_the_system),
    "a state without the buffer, by the system": plainly(Buffered, of_the_system),
    "ready, by the system": lambda tmp_path: DataLoader(Batches(Shuffled(of_the_system)), batch_size=None),
    "ready, no data set, by the system": lambda tmp_path: Iterable(Shuffled(of_the_system)),
    "Hugging Face without a seed": lambda tmp_path: hugging_face(tmp_path, buffer_size=12),
    "WebDataset without a seed": lambda tmp_path: web_dataset(tmp_path, lambda it: it.shuffle(12, initial=12)),
}
"""Those that do not."""
NEEDED = {"Hugging Face": "datasets", "WebDataset": "webdataset"}


def missing(kind):
    """The package that a kind needs and that is not installed; None: none is."""
    needed = [package for start, package in NEEDED.items() if kind.startswith(start)]
    return next((package for package in needed if importlib.util.find_spec(package) is None), None)
