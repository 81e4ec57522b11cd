"""The batches of a loop: what promises are computed from, once per shard."""

from __future__ import annotations

import itertools
import operator
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

import lockstep
from lockstep._base.errors import UsageError
from lockstep._data.batch import Batch
from lockstep.integrations.accelerate._means import is_sum_with_another, means_of
from lockstep.integrations.accelerate._program import PerShard, Program, follow, needed
from lockstep.integrations.accelerate._promise import Node, Promise, is_part, leaf, promises_in, replaced
from lockstep.integrations.accelerate._structure import Path, join, map_tensors, shape_of, with_leaves

_serials = itertools.count()


class PromisedBatch(ABC):
    """A batch whose parts are promises.

    Args:
        team: of this process.
    """

    is_ready: bool
    """See Source."""
    is_evaluated: bool
    """See Source."""
    structure: Any
    """See ``shape_of``."""

    def __init__(self, team: lockstep.Team) -> None:
        self.team = team
        self.device = team.device
        self.serial = next(_serials)
        self._nodes: list[weakref.ref[Node]] = []

    def add(self, node: Node) -> int:
        """See Source."""
        self._nodes.append(weakref.ref(node))
        return len(self._nodes) - 1

    @abstractmethod
    def value(self, node: Node) -> Any:
        """See Source."""

    @abstractmethod
    def end(self) -> None:
        """The loop takes the next batch: nothing more can be computed by shards of this one."""

    @abstractmethod
    def check_constant(self, value: Tensor) -> None:
        """See Source."""

    def promised(self, structure: Any) -> Any:
        """What the script gets: the batch with promises for its parts.

        Args:
            structure: see ``shape_of``.
        """

        def make(path: Path, part: Any) -> Any:
            return None if part is None else Promise(Node(self, leaf, path, {}))

        return with_leaves(structure, make)

    def settle_sums(self) -> None:
        """Compute what the script adds to a number of its own (``total += x``), before the loop
        takes the next batch. Every rank must call it."""
        for node in list(self._alive()):
            if not node.has_value and is_sum_with_another(node) and self.is_ready:
                node.settle(self.value(node))

    def _check(self, data: Any) -> None:
        if (found := shape_of(data)) != self.structure:
            raise UsageError(
                f"the loader's collate_fn gives batches of different structure: {_in_words(self.structure)}, and now "
                f"{_in_words(found)}. It is called once per shard, and the loop runs once for all shards, so their "
                "structure must be the same: give every batch the same keys or entries, or use lockstep's own loop."
            )

    def _alive(self) -> Iterator[Node]:
        for reference in self._nodes:
            node = reference()
            if node is not None:
                yield node


class TrainingBatch(PromisedBatch):
    """One global batch of a training pass.

    Args:
        team: of this process.
        batch: what the prepared loader yielded.
        structure: of the batch.
    """

    is_evaluated = False

    def __init__(self, team: lockstep.Team, batch: Batch, structure: Any) -> None:
        super().__init__(team)
        self._batch = batch
        self.structure = structure
        self.is_ready = False
        """Whether a backward pass has been run."""
        self._is_over = False

    @override
    def end(self) -> None:
        self._is_over = True

    @override
    def check_constant(self, value: Tensor) -> None:
        if value.requires_grad and value.grad_fn is not None and torch.is_grad_enabled():
            raise UsageError(
                f"a tensor with a graph ({value.grad_fn.name()}, shape {tuple(value.shape)}) was computed outside of the "
                "batch, and is combined with values that are computed per shard: each shard would run its graph backward "
                "again. Compute it per shard, too: penalty = accelerator.per_shard(function)(loss), where function(loss) "
                "returns the whole loss."
            )

    def backward(self, loss: Promise, scale: float, weight: Any, reduction: str | None, options: dict[str, Any]) -> None:
        """Compute the loss and its gradient in each shard; then, their means are known. Every rank
        must call it."""
        if self._is_over:
            raise UsageError("accelerator.backward(loss) of an earlier batch: call it before the loop takes the next one.")
        means = means_of(loss._node)
        told = [node for node in self._alive() if isinstance(node.call, Reduced) and not node.was_run]
        program = self._program([loss._node, *(promise._node for promise in promises_in(weight)), *means, *told])
        number, names = loss._node.number, {node.number: f"mean {place}" for place, node in enumerate(means)}
        weight_number = weight._node.number if isinstance(weight, Promise) else None
        sums = {node.number: node.call.reduction for node in told if isinstance(node.call, Reduced)}
        for node in (*means, *told):
            node.let_go()  # so that what the loss was computed from is not kept for it
        kept = {node.number: node for node in self._calls()}
        for node in kept.values():
            node.results = []
        for shard, num_samples, data in self._shards():
            memo: dict[int, Any] = {}
            program.run(data, memo, [number] if weight_number is None else [number, weight_number])
            value, of_shard = memo[number], weight if weight_number is None else memo[weight_number]
            self.team.backward(value if scale == 1 else value / scale, weight=of_shard, reduction=reduction, **options)
            program.run(data, memo, gradients=False)
            self._batch.add(reduction=reduction, **{name: _scalar(memo[key], name) for key, name in names.items()})
            for key, kind in sums.items():
                self._batch.add(reduction=kind, **{f"told {key}": _scalar(memo[key], f"reduce(..., {kind!r})")})
            if not self.team.in_audit:
                for key, node in kept.items():
                    assert node.results is not None
                    node.results.append((shard, num_samples, map_tensors(memo[key], Tensor.detach)))
        for node in means:
            node.settle(self._number(names[node.number]))
        for node in told:
            node.settle(self._number(f"told {node.number}"))
        for node in self._alive():
            node.was_run = True
        self.is_ready = True

    def _program(self, targets: list[Node]) -> Program:
        """The program of a phase, with the calls that the script still holds, too.

        Raises:
            UsageError: an earlier phase has made one of the calls that the targets need.
        """
        for node in needed(targets):
            if node.was_run and isinstance(node.call, PerShard):
                raise UsageError(
                    f"accelerator.backward(loss): the loss is computed from {node.name}, whose graph an "
                    "earlier accelerator.backward() of this batch has used. Call the model again between the two."
                )
        return Program([*targets, *self._calls()])

    def _calls(self) -> list[Node]:
        return [node for node in self._alive() if isinstance(node.call, PerShard) and not node.was_run]

    def _number(self, name: str) -> Tensor:
        value = self._batch[name]
        if isinstance(value, Tensor):
            return value.to(self.device, None if value.dtype == torch.int64 else torch.get_default_dtype())
        return torch.tensor(value, device=self.device)

    def _shards(self) -> Iterator[tuple[int, int, Any]]:
        """This process's shards: number, number of samples, samples."""
        sizes = {micro.shard: micro.num_samples for micro in self._batch.plan.micro_steps}
        for data in self._batch.shards:
            shard = self.team.shard
            self._check(data)
            yield shard, sizes[shard], data

    # Values over the whole batch

    @override
    def value(self, node: Node) -> Any:
        if not self.is_ready:
            raise UsageError(
                f"the value of {node.name} was needed before accelerator.backward(loss): by item(), float(), len(), a shape, "
                "an if, a print. accelerator.backward() computes it, once per shard. Move the line after it: there, it is "
                "the value over the whole batch. Or compute what needs it per shard: accelerator.per_shard(function)(x). (In "
                "an evaluation, call model.eval() of every prepared model before the loop.)"
            )
        before = torch.get_rng_state()
        with torch.no_grad():
            value = self._whole(node, {})
        if not torch.equal(before, torch.get_rng_state()):
            raise UsageError(
                f"{node.name}, or what it is computed from draws random numbers, "
                "other ones than the shards have drawn. Wrap what draws: noise = "
                "accelerator.per_shard(torch.randn_like)(x)."
            )
        return value

    def _whole(self, node: Node, memo: dict[int, Any]) -> Any:
        if node.has_value:
            return node.value
        if node.number not in memo:
            root, path = _root(node)
            if root is not None:
                memo[node.number] = self._gathered(root, path)
            else:

                def whole(promise: Promise) -> Any:
                    return self._whole(promise._node, memo)

                memo[node.number] = node.call(*replaced(node.args, whole), **replaced(node.kwargs, whole))
        return memo[node.number]

    def _gathered(self, root: Node, path: list[Callable[[Any], Any]]) -> Any:
        """The rows of a leaf, or of a model's result, over all ranks, after the steps of
        ``path``."""
        if root.call is leaf:
            micro_steps = zip(self._batch.plan.micro_steps, self._batch.data, strict=True)
            results = [(micro.shard, micro.num_samples, follow(root.args, data)) for micro, data in micro_steps]
        elif root.results is None:
            raise UsageError(
                f"the value of {root.name} was needed, which was called after accelerator.backward(loss), "
                "and not computed by it. Call it before, or give what follows from it to another accelerator.backward()."
            )
        else:
            results = root.results
        mine = [(shard, size, *_along(path, value)) for shard, size, value in results]
        try:
            gathered = self.team.all_gather_object(mine)
        except RuntimeError as error:
            error.add_note(
                f"The value of {root.name} over the whole batch was being read, which every process must do. If the line runs "
                "on some processes only (if accelerator.is_main_process), read it before: number = value.item()."
            )
            raise
        everyone = sorted(itertools.chain.from_iterable(gathered), key=operator.itemgetter(0))
        num_done = everyone[0][2]
        value = join([value for _, _, _, value in everyone], [size for _, size, _, _ in everyone], root.name)
        value = map_tensors(value, lambda tensor: tensor.to(self.device))
        for step in path[num_done:]:
            value = step(value)
        return value


class Reduced:
    """The call of a value that the script has called a mean or a sum over the batch."""

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction
        self.__name__ = f"reduce(..., {reduction!r})"

    def __call__(self, value: Any) -> Any:
        """The value."""
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reduced) and self.reduction == other.reduction

    def __hash__(self) -> int:
        return hash(self.reduction)


def _scalar(value: Any, name: str) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if tensor.numel() != 1:
        raise UsageError(
            f"{name} has the shape {tuple(tensor.shape)}: a value that is combined over the shards is one number."
        )
    return tensor.reshape(())


def _root(node: Node) -> tuple[Node | None, list[Callable[[Any], Any]]]:
    """The leaf or call whose part a node is, and the steps to that part; None: it is something
    else."""
    path: list[Callable[[Any], Any]] = []
    while is_part(node.call, node.args):
        owner, key = node.args
        path.insert(0, operator.attrgetter(key) if node.call is getattr else operator.itemgetter(key))
        node = owner._node
    return (node, path) if node.call is leaf or isinstance(node.call, PerShard) else (None, [])


def _along(path: list[Callable[[Any], Any]], value: Any) -> tuple[int, Any]:
    """The steps up to the first tensor: how many, and to what they lead. (A step within a tensor
    counts rows.)"""
    for number, step in enumerate(path):
        if isinstance(value, Tensor):
            return number, value.cpu()
        value = step(value)
    return len(path), map_tensors(value, Tensor.cpu)


def _in_words(structure: Any) -> str:
    if isinstance(structure, dict) or hasattr(structure, "keys"):
        return f"keys {', '.join(map(str, structure))}"
    return f"{len(structure)} entries" if isinstance(structure, (list, tuple)) else "one value"
