"""A buffer of a module, and its value when the phase began."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lockstep._base.errors import ModelError
from lockstep._base.versions import version

_MOST_COMPARED = 65536
"""The most elements of a buffer that is compared with its start value."""


def has_value(tensor: Tensor, value: Tensor) -> bool:
    """Returns whether a tensor is known to have this value already, so that it is not to be
    written: writing, even the same value, would invalidate a second backward pass through its
    graph. Does not wait for a GPU."""
    return tensor.device.type == "cpu" and torch.equal(tensor, value)


class Slot:
    """One buffer: its module and name, and its value when the phase began.

    Args:
        module: the buffer's.
        name: of the buffer in its module.
        is_statistic: whether it belongs to a normalization layer of PyTorch, which writes it
            through ``.data``, since no backward pass needs its values: so a second backward pass
            through one forward pass works as it does in a plain script.
    """

    def __init__(self, module: nn.Module, name: str, *, is_statistic: bool) -> None:
        self.module = module
        self.name = name
        self.is_statistic = is_statistic
        # Read some thirty times a step for each buffer: getattr() takes five times as long.
        self._buffers = module._buffers
        self._own = self.tensor
        """The tensor that was there when the model was prepared, or one made here. Any other tensor
        is the script's (an input, for example), and is not written to."""
        self.start = self.tensor.detach().clone()
        self.mark()

    @property
    def tensor(self) -> Tensor:
        buffer = self._buffers[self.name]
        assert buffer is not None
        return buffer

    @property
    def starts(self) -> list[Tensor]:
        """The value when the phase began, as a list: of ``Joined`` there are several."""
        return [self.start]

    @property
    def is_own(self) -> bool:
        """Whether the buffer is not a tensor that the script has assigned since."""
        return self._buffers[self.name] is self._own

    def read(self) -> Tensor:
        """Returns the buffer without its graph, for its change to be measured.

        Raises:
            ModelError: the shard changed the buffer's shape or dtype.
        """
        tensor = self.tensor
        if tensor.shape != self.start.shape or tensor.dtype != self.start.dtype:
            raise ModelError(
                f"the buffer {self.name!r} of {type(self.module).__name__} became {tuple(tensor.shape)}, {tensor.dtype} in a "
                f"forward pass, but was {tuple(self.start.shape)}, {self.start.dtype} when the step began, so the changes of "
                "several shards cannot be combined. Create it at its largest size before training, or keep it in a plain "
                "attribute if it is only a cache.",
                code="buffer-changed-form",
            )
        return tensor.detach()

    def writable(self, like: Tensor) -> Tensor:
        """Returns the buffer for writing: a new one if a forward pass has assigned another tensor,
        or one of another shape."""
        own = self._own
        if not self.is_own or own.shape != like.shape:
            own = self._own = torch.empty_like(like)
            setattr(self.module, self.name, own)
        return own.data if self.is_statistic else own

    def mark(self) -> None:
        tensor = self.tensor
        self._marked_tensor = tensor
        self._marked_version = version(tensor)

    @property
    def touched(self) -> bool:
        tensor = self.tensor
        if tensor is not self._marked_tensor or version(tensor) != self._marked_version:
            return True
        # Writes through ``.data`` or by native code are not counted. Comparing is cheap on the CPU;
        # on a GPU it would wait.
        is_compared = tensor.device.type == "cpu" and tensor.numel() <= _MOST_COMPARED
        return is_compared and not torch.equal(tensor.detach(), self.start)

    def restart(self) -> list[tuple[Tensor, Tensor]]:
        """Makes the current value the start value. Returns what remains to be copied."""
        tensor = self.tensor.detach()
        if tensor.shape != self.start.shape or tensor.dtype != self.start.dtype:
            self.start = tensor.clone()
        self.mark()
        return [(self.start, tensor)]

    def put(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffer a value. Returns what remains to be copied."""
        tensor = self.tensor
        return [] if tensor is self._marked_tensor and has_value(tensor, value) else [(self.writable(value), value)]

    def restore(self) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffer its start value. Returns what remains to be copied."""
        return self.put(self.start)

    def put_back(self, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Gives the buffer the value that it had before a backward pass, unless it has another
        shape now. Returns what remains to be copied."""
        return [(self.writable(value), value)] if self.tensor.shape == value.shape else []
