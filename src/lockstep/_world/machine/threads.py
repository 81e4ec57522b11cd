"""The threads of native libraries in this process: BLAS (NumPy's, and SciPy's own) and OpenMP.

PyTorch's number of threads is set with ``torch.set_num_threads``, which does not affect NumPy's
BLAS, where the number of threads can change bits too. Both are set to the same number. Nothing in
this module starts a parallel region.

A library chooses its number of threads when it is loaded. One that is loaded after ``use_threads``
(by an import in the middle of the script) is found, and set, at the next check.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from threadpoolctl import ThreadpoolController

_libraries: tuple[Any, ...] = ()
"""Threadpoolctl's controllers of the loaded libraries. (They remain valid in a forked child.)"""
_num_modules = -1
"""Number of imported modules at the last check, which takes some milliseconds; counting modules
takes next to nothing."""
_number: int | None = None
"""The number given to ``use_threads``."""


def libraries() -> tuple[Any, ...]:
    """Controllers of the loaded libraries. New ones are set to the number of ``use_threads``."""
    global _libraries, _num_modules
    if len(sys.modules) != _num_modules:
        with warnings.catch_warnings():
            # It warns of several OpenMP libraries in one process, which lockstep cannot change.
            warnings.simplefilter("ignore", RuntimeWarning)
            controllers = ThreadpoolController().lib_controllers
        earlier = {library.filepath for library in _libraries}
        _libraries, _num_modules = tuple(controllers), len(sys.modules)
        if _number is not None:
            for library in controllers:
                if library.filepath not in earlier:
                    set_number(library, _number)
    return _libraries


def use_threads(number: int) -> None:
    """Sets the number of threads of all libraries, including those loaded later. PyTorch's is set
    separately."""
    global _number
    _number = number
    for library in libraries():
        set_number(library, number)


def set_number(library: Any, number: int) -> None:
    """Sets the number of threads of one library."""
    # Compared first: right after a fork, setting OpenBLAS to one thread first recreates all threads
    # that it had.
    if library.num_threads != number:
        _set(library, number)


def _set(library: Any, number: int) -> None:
    library.set_num_threads(number)
    # Otherwise threadpoolctl (3.8) would ignore later settings by other Python threads.
    clear = getattr(library, "clear_controlling_thread", None)
    if clear is not None:
        clear()


class Lowered:
    """A limit of all libraries to one thread, from creation until ``put_back``."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = [(library, number) for library in libraries() if (number := library.num_threads) != 1]
        for library, _ in self._before:
            _set(library, 1)

    @property
    def has_changed(self) -> bool:
        """Whether any library had another number of threads."""
        return bool(self._before)

    def put_back(self) -> None:
        """Restores the numbers of threads. May be called again."""
        while self._before:
            _set(*self._before.pop())
