"""Copies of tensors, taken while training is paused, to be written while it continues.

::

    training:   step | pause: copy to memory | step | step | step
    writer:                                  | write the copy to disk  |

The pause is the copy alone, at memory speed. Without it, the writer would read tensors that the
next step is changing.

Everything is copied in the pause, also what only ``optimizer.step`` is meant to change. An
optimizer's moments could be copied during the next forward and backward pass, but their copy would
be torn if the script changed them there, and not every such change can be noticed: a method of the
optimizer that updates its curvature, hooks that do so during the passes, ``state[...].data``, a
collective (``all_reduce(momentum)``), or a view of NumPy's. PyTorch counts writes to a tensor, but
none of the last three.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import torch
from torch import Tensor

from lockstep._state.checkpoint.copying import copy_pieces, is_memory, pieces_of
from lockstep._state.checkpoint.files import Bytes
from lockstep._state.checkpoint.pinned import Forms, Pinned


class Staging:
    """The memory for copies, kept from one checkpoint to the next.

    Reusing it matters: the first write to each page of new memory is a page fault, and all of them
    take twenty times as long as the copy (1.2 GB: 3.5 s rather than 0.14 s).
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        """The memory for tensors on the CPU."""
        self._pinned = Pinned({})

    def prepare(self, forms: Forms) -> None:
        """Allocates memory for CPU tensors of these shapes and dtypes. May run concurrently with
        training."""
        for name, (shape, dtype) in forms.items():
            self._buffer(name, shape, dtype)

    def copy(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[torch.Event]]:
        """Copies tensors to contiguous CPU memory. Returns the copies, and the events after which
        the copies from GPUs are complete.

        The copies are valid until the next call.
        """
        copies: dict[str, Tensor] = {}
        gpus: set[torch.device] = set()
        pieces: list[tuple[Bytes, Bytes]] = []
        # Only a copy to pinned memory is asynchronous.
        pinned = self._memory_of(
            {name: (one.shape, one.dtype) for name, one in tensors.items() if one.device.type not in ("cpu", "meta")}
        )
        with torch.no_grad():
            for name, tensor in tensors.items():
                copy = pinned[name] if name in pinned else self._buffer(name, tensor.shape, tensor.dtype)
                copies[name] = copy
                source = tensor.detach()
                if is_memory(source):
                    pieces += pieces_of(copy, source)
                    continue
                copy.copy_(source, non_blocking=True)
                if not tensor.is_cpu:
                    gpus.add(tensor.device)
        # After the copies from GPUs have begun, which go on meanwhile.
        copy_pieces(pieces)
        for name in self._buffers.keys() - (tensors.keys() - pinned.keys()):
            # Tensors that no longer exist, for example a gradient that was set to None.
            del self._buffers[name]
        # No wait here: later work on a GPU's stream, such as an optimizer's step, is ordered after
        # the copies. The writer's thread waits for the events.
        return copies, [torch.accelerator.current_stream(gpu).record_event() for gpu in gpus]

    def _memory_of(self, forms: Forms) -> Mapping[str, Tensor]:
        """Returns pinned memory for these tensors: that of the copy before, if it was for the same
        ones."""
        if forms != self._pinned.forms:
            self._pinned = Pinned({})  # first, so that the new memory may be the old
            self._pinned = Pinned(forms)
        return self._pinned.views

    def _buffer(self, name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != shape or buffer.dtype != dtype:
            # "cpu" also where the script has called torch.set_default_device().
            buffer = torch.empty(shape, dtype=dtype, device="cpu")
            touch(buffer)
            self._buffers[name] = buffer
        return buffer


def touch(tensor: Tensor) -> None:
    """Writes to all of a new tensor's memory, in this thread only and without holding the GIL.

    ``Tensor.zero_`` would use all threads of the intra-op pool, which training needs.
    """
    ctypes.memset(tensor.data_ptr(), 0, tensor.nbytes)
