"""Operations that a run uses although PyTorch has no deterministic kernel for them, by name."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from typing_extensions import override

from lockstep._base.nondeterministic_operations import by_name


class AllowedOperations:
    """Turns deterministic kernels off while one of these operations runs, and only then, from
    creation until ``put_back``. Local.

    Each operation's kernel is replaced in PyTorch's dispatcher by one that turns them off, calls
    the kernel, and turns them on again. So no other operation pays for it, and it works wherever
    the operation is called: by the script, and by autograd in its own threads. The setting belongs
    to the process: of other threads, only one that starts a kernel on a device in this moment would
    be affected, which is why there may be only one device.

    Args:
        names: of operations.
        dispatch_key: PyTorch's name for the kind of device: ``CUDA``.
    """

    num_open: ClassVar[int] = 0
    """The number of those in this process that allow at least one operation."""

    def __init__(self, names: Sequence[str], dispatch_key: str = "CUDA") -> None:
        self._library: torch.library.Library | None = None
        if not names:
            return
        self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            # PyTorch warns once that a kernel of its own is replaced.
            warnings.filterwarnings("ignore", category=UserWarning)
            for kernel in (kernel for name in names for kernel in by_name(name).kernels):
                replacement = _allowing(torch.library.get_kernel(f"aten::{kernel}", dispatch_key))
                self._library.impl(kernel, replacement, dispatch_key, with_keyset=True)  # type: ignore[no-untyped-call]
        AllowedOperations.num_open += 1

    def put_back(self) -> None:
        """Restores PyTorch's kernels."""
        if self._library is not None:
            AllowedOperations.num_open -= 1
            self._library = None  # its end removes what it has registered


class _Off(contextlib.AbstractContextManager[None]):
    """Deterministic kernels are off while any thread is in this context."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._mode = 0
        """The mode before the first thread entered. One that enters second must not restore what
        it finds."""

    @override
    def __enter__(self) -> None:
        with self._lock:
            if not self._num_inside:
                self._mode = torch.get_deterministic_debug_mode()
                torch.set_deterministic_debug_mode(0)
            self._num_inside += 1

    @override
    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if not self._num_inside:
                torch.set_deterministic_debug_mode(self._mode)


_off = _Off()


def _allowing(kernel: Any) -> Callable[..., Any]:
    def run(dispatch_keys: Any, *args: Any, **kwargs: Any) -> Any:
        with _off:
            return kernel.call_boxed(dispatch_keys, *args, **kwargs)

    return run
