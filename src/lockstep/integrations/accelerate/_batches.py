"""The batches of a training loop, from which promises are computed once per shard.

``backward`` is the only moment at which shards run. Until then, the script has only recorded
operations. ``TrainingBatch.backward`` runs the recorded program for each shard of this process::

    for each shard of this process:
        program up to the loss     with a graph, in the order of the script
        team.backward(loss)        adds the shard's gradient
        rest of the program        without a graph: predictions, counts
        batch.add(...)             the means, which every rank then has
        node.results               the outputs of calls, for values that the script reads later

Rows of a value stay on the rank that computed them, until the script reads them (``value``)."""

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
from lockstep.integrations.accelerate._sizes import check_factors
from lockstep.integrations.accelerate._structure import Path, join, map_tensors, shape_of, with_leaves

_serials = itertools.count()


class PromisedBatch(ABC):
    """A batch whose parts are promises, the base class of the implementations of ``Source``.

    Args:
        team: the team of this process.
    """

    is_ready: bool
    """Whether ``value`` can be called."""
    is_evaluated: bool
    """Whether the operations of this batch also run on other batches."""
    structure: Any
    """The structure of the batch, as ``shape_of`` returns it."""

    def __init__(self, team: lockstep.Team) -> None:
        self.team = team
        self.device = team.device
        self.serial = next(_serials)
        self._nodes: list[weakref.ref[Node]] = []

    def add(self, node: Node) -> int:
        """Records a node and returns its number in the batch."""
        # Weak references: a value that the script has dropped need not be computed or kept.
        self._nodes.append(weakref.ref(node))
        return len(self._nodes) - 1

    @abstractmethod
    def value(self, node: Node) -> Any:
        """Computes a value over the global batch. Every rank must call it."""

    @abstractmethod
    def end(self) -> None:
        """Marks the batch as finished when the loop fetches the next one, after which no value can
        be computed from its shards."""

    @abstractmethod
    def check_constant(self, value: Tensor) -> None:
        """Checks a tensor of the script that an operation uses together with promises."""

    def promised(self, structure: Any) -> Any:
        """Returns the batch as the script sees it, with a promise for each part.

        Args:
            structure: the structure of the batch, from ``shape_of``.
        """

        def make(path: Path, part: Any) -> Any:
            return None if part is None else Promise(Node(self, leaf, path, {}))

        return with_leaves(structure, make)

    def settle_sums(self) -> None:
        """Computes the values that the script adds to its own numbers (``total += x``), before the
        loop fetches the next batch. Every rank must call it."""
        # Such a sum is usually read after the epoch, when its batches are no longer available.
        for node in list(self._alive()):
            if not node.has_value and is_sum_with_another(node) and self.is_ready:
                node.settle(self.value(node))

    def _check(self, data: Any) -> None:
        if (found := shape_of(data)) != self.structure:
            raise UsageError(
                f"collate_fn returned {_as_text(found)}, and {_as_text(self.structure)} before. It is called once per shard, "
                "while the loop runs once for all shards, so the structure must not change. Return the same keys or entries "
                "for every batch, or use lockstep's own loop.",
                code="unequal-structure",
            )

    def _alive(self) -> Iterator[Node]:
        for reference in self._nodes:
            node = reference()
            if node is not None:
                yield node


class TrainingBatch(PromisedBatch):
    """One global batch of a training pass.

    Args:
        team: the team of this process.
        batch: the batch that the prepared loader yielded.
        structure: the structure of the batch, from ``shape_of``.
    """

    is_evaluated = False

    def __init__(self, team: lockstep.Team, batch: Batch, structure: Any) -> None:
        super().__init__(team)
        self._batch = batch
        self.structure = structure
        self.is_ready = False
        """Whether a backward pass was computed for this batch."""
        self._is_over = False

    @override
    def end(self) -> None:
        self._is_over = True

    @override
    def check_constant(self, value: Tensor) -> None:
        if value.requires_grad and value.grad_fn is not None and torch.is_grad_enabled():
            raise UsageError(
                f"a tensor with a graph ({value.grad_fn.name()}, shape {tuple(value.shape)}) is combined with values that "
                "are computed per shard, so each shard would run its graph backward again. Compute it per shard as well: "
                "loss = accelerator.per_shard(function)(loss), where function returns the sum.",
                code="graph-from-outside",
            )

    def backward(self, loss: Promise, scale: float, weight: Any, reduction: str | None, options: dict[str, Any]) -> None:
        """Computes the loss and its gradient in each shard, and then their means. Every rank must
        call it."""
        if self._is_over:
            raise UsageError(
                "accelerator.backward(loss) was called for an earlier batch. Call it before the loop fetches the next batch.",
                code="backward-too-late",
            )
        if weight is None:
            check_factors(loss._node)
        means = means_of(loss._node)
        reduced = [node for node in self._alive() if isinstance(node.call, Reduced) and not node.was_run]
        program = self._program([loss._node, *(promise._node for promise in promises_in(weight)), *means, *reduced])
        number, names = loss._node.number, {node.number: f"mean {place}" for place, node in enumerate(means)}
        weight_number = weight._node.number if isinstance(weight, Promise) else None
        sums = {node.number: node.call.reduction for node in reduced if isinstance(node.call, Reduced)}
        for node in (*means, *reduced):
            # These get a value below. Without this, they would keep all inputs of the loss alive.
            node.let_go()
        kept = {node.number: node for node in self._calls()}
        for node in kept.values():
            node.results = []
        own = iter(self._batch.plan.micro_batches)
        for data in self._batch.shards:
            self._check(data)
            memo: dict[int, Any] = {}
            program.run(data, memo, [number] if weight_number is None else [number, weight_number])
            value, of_shard = memo[number], weight if weight_number is None else memo[weight_number]
            self.team.backward(value if scale == 1 else value / scale, weight=of_shard, reduction=reduction, **options)
            program.run(data, memo, gradients=False)
            self._batch.add(reduction=reduction, **{name: _scalar(memo[key], name) for key, name in names.items()})
            for key, kind in sums.items():
                self._batch.add(reduction=kind, **{f"reduced {key}": _scalar(memo[key], f"reduce(..., {kind!r})")})
            # An audit computes a shard of any rank again, whose results its owner keeps.
            if not self.team.in_audit:
                micro = next(own)
                for key, node in kept.items():
                    assert node.results is not None
                    node.results.append((micro.shard, micro.num_samples, map_tensors(memo[key], Tensor.detach)))
        for node in means:
            node.settle(self._number(names[node.number]))
        for node in reduced:
            node.settle(self._number(f"reduced {node.number}"))
        for node in self._alive():
            node.was_run = True
        self.is_ready = True

    def _program(self, targets: list[Node]) -> Program:
        """Returns the program of a phase, which includes the calls whose results the script still
        references.

        Raises:
            UsageError: an earlier phase made one of the calls that the targets need.
        """
        for node in needed(targets):
            if node.was_run and isinstance(node.call, PerShard):
                raise UsageError(
                    f"accelerator.backward(loss): the loss depends on {node.name}, whose graph an earlier "
                    "accelerator.backward() of this batch used. Call the model again between the two.",
                    code="graph-used-before",
                )
        return Program([*targets, *self._calls()])

    def _calls(self) -> list[Node]:
        return [node for node in self._alive() if isinstance(node.call, PerShard) and not node.was_run]

    def _number(self, name: str) -> Tensor:
        value = self._batch[name]
        if isinstance(value, Tensor):
            return value.to(self.device, None if value.dtype == torch.int64 else torch.get_default_dtype())
        return torch.tensor(value, device=self.device)

    # Values over the global batch

    @override
    def value(self, node: Node) -> Any:
        if not self.is_ready:
            raise UsageError(
                f"the value of {node.name} was read (item(), float(), len(), a shape, an if, a print) before "
                "accelerator.backward(loss), which computes it. Move the line after backward(), or compute it per shard: "
                "accelerator.per_shard(function)(x). For an evaluation, call model.eval() before the loop.",
                code="value-before-backward",
            )
        before = torch.get_rng_state()
        with torch.no_grad():
            value = self._whole(node, {})
        if not torch.equal(before, torch.get_rng_state()):
            raise UsageError(
                f"{node.name} depends on random numbers, and computing its value would draw other numbers than the shards "
                "did. Wrap the call that draws them: noise = accelerator.per_shard(torch.randn_like)(x).",
                code="other-random-numbers",
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
        """Returns the rows of a leaf or of a model's result from all ranks, after the steps of
        ``path``."""
        if root.call is leaf:
            micro_batches = zip(self._batch.plan.micro_batches, self._batch.data, strict=True)
            results = [(micro.shard, micro.num_samples, follow(root.args, data)) for micro, data in micro_batches]
        elif root.results is None:
            raise UsageError(
                f"the value of {root.name} was read, but the call came after accelerator.backward(loss), which therefore did "
                "not compute it. Move the call before backward(), or pass its loss to another accelerator.backward().",
                code="call-after-backward",
            )
        else:
            results = root.results
        mine = [(shard, size, *_along(path, value)) for shard, size, value in results]
        try:
            gathered = self.team.all_gather_object(mine)
        except RuntimeError as error:
            error.add_note(
                f"This happened while the value of {root.name} over the global batch was read, which every process must do. "
                "If the line runs on some processes only (if accelerator.is_main_process), read the value before it: "
                "number = value.item()."
            )
            raise
        everyone = sorted(itertools.chain.from_iterable(gathered), key=operator.itemgetter(0))
        num_done = everyone[0][2]
        value = join([value for _, _, _, value in everyone], [size for _, size, _, _ in everyone], root.name)
        value = map_tensors(value, lambda tensor: tensor.to(self.device))
        # The other steps index rows (outputs[:4]), so they are taken after the rows are joined.
        for step in path[num_done:]:
            value = step(value)
        return value


class Reduced:
    """The call of a number that the script passed to ``reduce`` as a mean or a sum."""

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction
        self.__name__ = f"reduce(..., {reduction!r})"

    def __call__(self, value: Any) -> Any:
        """Returns the value of one shard. The reduction follows when all shards have one."""
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reduced) and self.reduction == other.reduction

    def __hash__(self) -> int:
        return hash(self.reduction)


def _scalar(value: Any, name: str) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if tensor.numel() != 1:
        raise UsageError(
            f"{name} has the shape {tuple(tensor.shape)}, but only single numbers can be combined over the shards. Reduce it "
            "to one number first.",
            code="not-a-number",
        )
    return tensor.reshape(())


def _root(node: Node) -> tuple[Node | None, list[Callable[[Any], Any]]]:
    """Returns the leaf or call of which a node is a part, and the steps to that part; None: the
    node is an operation."""
    path: list[Callable[[Any], Any]] = []
    while is_part(node.call, node.args):
        owner, key = node.args
        path.insert(0, operator.attrgetter(key) if node.call is getattr else operator.itemgetter(key))
        node = owner._node
    return (node, path) if node.call is leaf or isinstance(node.call, PerShard) else (None, [])


def _along(path: list[Callable[[Any], Any]], value: Any) -> tuple[int, Any]:
    """Takes the steps up to the first tensor, inside which a step would index rows. Returns the
    number of steps and the part that they lead to."""
    for number, step in enumerate(path):
        if isinstance(value, Tensor):
            return number, value.cpu()
        value = step(value)
    return len(path), map_tensors(value, Tensor.cpu)


def _as_text(structure: Any) -> str:
    if isinstance(structure, dict) or hasattr(structure, "keys"):
        return f"keys {', '.join(map(str, structure))}"
    return f"{len(structure)} entries" if isinstance(structure, (list, tuple)) else "one value"
