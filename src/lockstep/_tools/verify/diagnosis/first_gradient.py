"""The gradient of a run's first batch as numbers, to be compared with that of one device up to
rounding.

Intended differences between shards are excluded: layers of PyTorch and other libraries are in
evaluation mode, so that nothing is dropped and BatchNorm uses its running statistics, and the
random numbers that a dataset draws for a sample (to augment it) depend on the sample alone.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from typing_extensions import override

from lockstep._base.digest import digest
from lockstep._base.tracebacks.frames import owner
from lockstep._listener import Listener, Stage
from lockstep._plan.shards import MicroBatch
from lockstep._tools.verify.trace.lines import TraceWriter
from lockstep._tools.verify.trace.subjects import Subjects
from lockstep._world import devices
from lockstep._world.comm.dtensors import full_tensor

_MOST_NUMBERS = 65_536
"""The most numbers of the gradient that are recorded, evenly spaced, which suffice for a
comparison."""


class FirstGradient(Listener):
    """Writes one line of the trace about the first phase of a run.

    Args:
        writer: of the process's trace.
        subjects: the prepared objects.
    """

    stage = Stage.LATE

    def __init__(self, writer: TraceWriter, subjects: Subjects) -> None:
        self._writer: TraceWriter | None = writer
        self._subjects = subjects
        self._streams: Any = None
        self._draws = False
        self._rows: list[str] = []

    def prepared(self, item: Any) -> None:
        """Put a model's library layers into evaluation mode whenever they are called."""
        for module in item.modules() if self._subjects.prefix_of(item) is not None else ():
            whose = _owner_of(type(module))
            if whose == "plumbing" or (whose == "library" and not any(module.children())):
                module.register_forward_pre_hook(_evaluate)

    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """Seed the random streams for each sample by its index. This changes the dataset's class,
        since a ``DataLoader`` does not allow its dataset to be replaced."""
        dataset = getattr(batches, "dataset", batches)
        plain = type(dataset)
        if not hasattr(plain, "__getitem__"):
            return

        def __getitem__(self: Any, index: Any) -> Any:  # noqa: N807
            number = int(digest(index)[:8], 16)
            torch.default_generator.manual_seed(number)
            numpy.random.seed(number)
            random.seed(number)
            return plain.__getitem__(self, index)

        def __getitems__(self: Any, indices: Any) -> Any:  # noqa: N807
            return [self[index] for index in indices]

        methods = {"__getitem__": __getitem__, "__getitems__": __getitems__, "__module__": plain.__module__}
        with contextlib.suppress(TypeError):  # a list, say, which draws no random numbers
            dataset.__class__ = type(plain.__name__, (plain,), methods)

    @override
    def received(self, micro: MicroBatch, data: Any) -> None:
        self._streams = _state_of_streams()
        columns = [column for column in _tensors(data) if column.shape[:1] == (micro.num_samples,)]
        self._rows += [digest([column[index] for column in columns]) for index in range(micro.num_samples)]

    @override
    def end_shard(self) -> None:
        self._draws = self._draws or _state_of_streams() != self._streams

    @override
    def end_phase(self, phase: int) -> None:
        if self._writer is not None:
            gradients = self._subjects.gradients()
            every = 1 + sum(gradient.numel() for gradient in gradients.values()) // _MOST_NUMBERS
            values = {name: _numbers(full_tensor(gradient))[::every].tolist() for name, gradient in gradients.items()}
            self._writer.write(event="gradient", values=values, rows=sorted(self._rows), draws=self._draws)
        self._writer = None


def _owner_of(kind: type) -> str:
    return owner(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<built in>")


def _state_of_streams() -> list[Any]:
    """The states of the generators that lockstep reseeds."""
    generators = (torch.default_generator, *getattr(devices.in_use(), "default_generators", ()))
    states = [generator.get_state().numpy().tobytes() for generator in generators]
    return [random.getstate(), repr(numpy.random.get_state()), *states]


def _evaluate(module: nn.Module, inputs: Any) -> None:
    module.training = False


def _numbers(gradient: Tensor) -> Tensor:
    dense = gradient.detach() if gradient.layout == torch.strided else gradient.detach().to_dense()
    return dense.cpu().double().reshape(-1)


def _tensors(data: Any) -> Iterator[Tensor]:
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, (list, tuple, Mapping)):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from _tensors(part)
