"""Which call of a script is writing a file, from a thread's stack.

C functions (``os.fsync``, ``file.write``) have no frame: what a frame is calling is read from its code and source. So a
function that the script has put in the place of one, to add a retry, say, is recognized by the call, too.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
from types import CodeType, FrameType
from typing import NamedTuple

from lockstep.base.tracebacks.frames import owner

_FILES = ("fsync", "fdatasync", "sync", "write", "pwrite", "writev", "sendfile", "copy_file_range", "truncate", "ftruncate")
_COPIES = ("copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "make_archive", "_fastcopy_sendfile")
_NAMED = {
    *(f"os.{name}" for name in _FILES),
    *(f"shutil.{name}" for name in _COPIES),
    *("torch.save", "pickle.dump", "json.dump", "np.save", "numpy.save"),
}
"""What writes, whatever it was replaced by."""
_LIKE_WRITING = re.compile(
    r"(^|[._])(save|savez|savetxt|savefig|dump|write|writelines|flush|fsync|to_csv|to_parquet)(_(?!for_)\w+)?$"
)
"""Methods and functions that write if they are not the script's own."""
_LIBRARY = (("/torch/serialization.py", ("save", "_save", "_legacy_save"), "torch"), ("/shutil.py", _COPIES, "shutil"))
"""Python functions that write, whoever calls them: the file, its functions, and what users know it by."""
_MOST_FRAMES = 60


class Write(NamedTuple):
    """A write in progress."""

    file: str
    """Of the script, with ``line`` and ``function``."""
    line: int
    function: str
    call: str
    """What writes: ``os.fsync``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function} ({self.call})"


def write_in(frame: FrameType | None) -> Write | None:
    """The write that a thread is in, from its innermost frame; None: it is in none, as far as can be seen."""
    call, callee, count = "", "", 0
    while frame is not None and count < _MOST_FRAMES:
        code, count = frame.f_code, count + 1
        mine = owner(code.co_filename)
        if not call:
            call = _known(code.co_filename, code.co_name)
        if not call and mine == "user":
            name = _called(code, frame.f_lasti)
            if name in _NAMED or (callee != "user" and _LIKE_WRITING.search(name)):
                call = name
        if call and mine == "user":
            return Write(code.co_filename, frame.f_lineno, code.co_name, call)
        callee, frame = mine, frame.f_back
    return None


@functools.cache
def _known(file: str, function: str) -> str:
    for ending, functions, module in _LIBRARY:
        if file.endswith(ending) and function in functions:
            return f"{module}.{function.removeprefix('_').removeprefix('legacy_')}"
    return ""


@functools.lru_cache(maxsize=512)
def _called(code: CodeType, instruction: int) -> str:
    """The name of the function that this instruction calls, as it is written; empty: it is no call of a name."""
    positions = itertools.islice(code.co_positions(), max(0, instruction // 2), None)
    first, last, start, end = next(positions, (None, None, None, None))
    if first is None or last is None or start is None or end is None:
        return ""
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        node = ast.parse(b"".join(lines).decode(errors="replace").strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""
