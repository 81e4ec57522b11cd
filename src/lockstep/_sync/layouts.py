"""The buckets of ``exact``, in a layout for each set of trainable parameters, and what earlier
phases have sent in them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch.nn import Parameter

from lockstep._sync.buckets import Bucket, make_buckets
from lockstep._sync.gradients import has_gradient

_MAX_LAYOUTS = 8
"""The number of cached bucket layouts, one per set of trainable parameters: a script may freeze
other parameters in every step. (A layout that a step and the two before it have not used has no
memory.)"""


_kind_of: Callable[[Parameter], tuple[bool, torch.dtype]] = operator.attrgetter("requires_grad", "dtype")


class Layout:
    """The assignment of each parameter's gradient to a bucket.

    Args:
        parameters: of the run, whose numbers are their places here.
        buckets: of the parameters that can have gradients.
    """

    def __init__(self, parameters: Iterable[Parameter], buckets: Sequence[Bucket]) -> None:
        self.buckets = buckets
        numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self.places = {
            numbers[parameter]: (index, slot)
            for index, bucket in enumerate(buckets)
            for slot, parameter in enumerate(bucket.parameters)
        }
        """The place of the gradient of each parameter, by its number: the index of its bucket, and
        its slot there. (To hash a parameter itself is a call in Python, for each gradient.)"""
        self._last_step: int | None = None
        """The newest step that has used it; None: its memory is freed."""

    def use(self, step: int) -> None:
        """Notes that this step uses the layout."""
        self._last_step = step

    def free_unless_used_since(self, step: int) -> None:
        """Frees the memory for gradients if neither this step nor a later one has used it."""
        if self._last_step is not None and self._last_step < step:
            self._last_step = None
            for bucket in self.buckets:
                bucket.free()


class UsedSlots(NamedTuple):
    """The slots of a bucket that have gradients."""

    own: set[int]
    """The slots in which a shard of this process had one."""
    any_shard: list[int]
    """The slots in which a shard of any process had one, as the summed counts have shown."""


class History:
    """What earlier phases of one index have sent. It is sent without asking from then on. The same
    on every rank, except ``slots[...].own``."""

    def __init__(self) -> None:
        self.buckets: dict[tuple[Layout, int], set[int]] = {}
        """The buckets in which any shard had gradients, for each layout and backward call."""
        self.modules: set[int] = set()
        """The numbers of the modules whose buffers any shard has changed."""
        self.slots: dict[tuple[Layout, int, int], UsedSlots | None] = {}
        """The slots of each bucket on a GPU, by layout, backward call and bucket. A bucket without
        an entry has yet to be read for the first time. Reading its counts waits for the GPU, so
        they are not read again while every rank's own slots are the same. None: some rank has
        reported other own slots, so the counts are read in every phase."""

    def forget(self, layout: Layout) -> None:
        """Forgets what was sent in a layout that is used no more."""
        self.buckets = {key: used for key, used in self.buckets.items() if key[0] is not layout}
        self.slots = {key: used for key, used in self.slots.items() if key[0] is not layout}


class Layouts:
    """The newest layouts of a run.

    Args:
        num_slices: as for ``Bucket``.
    """

    def __init__(self, num_slices: int = 1) -> None:
        self._num_slices = num_slices
        self._layouts: dict[tuple[tuple[bool, torch.dtype], ...], Layout] = {}

    def choose(self, parameters: Iterable[Parameter], step: int) -> tuple[Layout, Layout | None]:
        """Chooses the layout for a step: for the current set of trainable parameters.

        Frozen parameters, which may be unfrozen within a phase, have separate buckets: as long
        as they have no gradients, nothing is stored or sent for them.

        Returns:
            The layout, and the one that was dropped for it; None: none was.
        """
        kind = tuple(map(_kind_of, parameters))
        dropped = None
        # Reinserted behind the others, so that the first is the one that was not used for longest.
        layout = self._layouts.pop(kind, None)
        if layout is None:
            if len(self._layouts) == _MAX_LAYOUTS:
                dropped = self._layouts.pop(next(iter(self._layouts)))
            can_learn = list(filter(has_gradient, parameters))
            learning = make_buckets([p for p in can_learn if p.requires_grad], self._num_slices)
            frozen = make_buckets([p for p in can_learn if not p.requires_grad], self._num_slices)
            layout = Layout(parameters, learning + frozen)
        self._layouts[kind] = layout
        layout.use(step)
        if len(self._layouts) > 1:
            for other in self._layouts.values():
                other.free_unless_used_since(step - 2)
        return layout, dropped
