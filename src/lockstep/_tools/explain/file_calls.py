"""Which call of a script reads or writes a file, or waits for a lock, from a thread's stack.

C functions (``os.fsync``, ``lock.acquire``) have no frame: what a frame calls is read from its code
and source. So a function by which the script has replaced one, for example to add a retry, is also
recognized.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
import re
import textwrap
from collections.abc import Sequence
from types import CodeType, FrameType

from lockstep._base.tracebacks.frames import owner

_OF_FILES = re.compile(
    r"os\.(fsync|fdatasync|sync|p?write(v|v2)?|p?read(v|v2)?|sendfile|copy_file_range|f?truncate)"
    r"|shutil\.(copy|copy2|copyfile|copyfileobj|copytree|move|make_archive)"
    r"|(torch|pickle|json|np|numpy)\.(save|savez|load|dump|fromfile)"
    r"|.*\.(write|writelines|flush|tofile|write_bytes|write_text|read_bytes|read_text|readinto)"
)
"""The calls that read or write, whatever function is behind them. (Not every ``read()``: a socket's
waits for another process.)"""
_LIBRARY = (
    ("/torch/serialization.py", "save", "torch.save"),
    ("/torch/serialization.py", "load", "torch.load"),
    *(("/shutil.py", name, f"shutil.{name}") for name in ("copyfile", "copyfileobj", "copytree", "move")),
)
"""Python functions that read or write, independent of the caller: the file, the function, and its
name for users."""
_MOST_USERS = 3
"""The number of the script's frames that are examined."""


def file_call(frames: Sequence[FrameType]) -> tuple[str, FrameType] | None:
    """The call of a thread that reads or writes a file, as ``os.fsync``, and the script's frame
    that has made it; None: it is in none, as far as can be seen.

    ``frames``: the thread's, innermost first.
    """
    call, users = "", 0
    for frame in frames:
        code = frame.f_code
        is_users = owner(code.co_filename) == "user"
        if not call:
            call = _known(code.co_filename, code.co_name)
        if not call and is_users:
            name = called(code, frame.f_lasti)
            call = name if _OF_FILES.fullmatch(name) else ""
        if is_users and call:
            return call, frame
        users += is_users
        if users == _MOST_USERS:
            break
    return None


@functools.cache
def _known(file: str, function: str) -> str:
    return next((name for end, known, name in _LIBRARY if function == known and file.endswith(end)), "")


def called(code: CodeType, instruction: int) -> str:
    """The name of the function that this instruction calls, as it is written; empty: it is no call
    of a name."""
    node = _source(code, instruction)
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def acquired(code: CodeType, instruction: int) -> str:
    """What this instruction enters by ``with``, or acquires, as it is written; empty: neither, or
    it has no name."""
    node = _source(code, instruction)
    if isinstance(node, ast.With):  # Python 3.11: later the instruction is that of the name
        return ", ".join(ast.unparse(item.context_expr) for item in node.items)
    if isinstance(node, ast.Call):
        node = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "acquire" else None
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


@functools.lru_cache(maxsize=512)
def _source(code: CodeType, instruction: int) -> ast.expr | ast.stmt | None:
    """The expression or statement that this instruction is of; None: that is not known."""
    positions = itertools.islice(code.co_positions(), max(0, instruction // 2), None)
    first, last, start, end = next(positions, (None, None, None, None))
    if first is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = b" " * start + lines[0][start:]
    try:
        [node] = ast.parse(textwrap.dedent(b"".join(lines).decode(errors="replace"))).body
    except (SyntaxError, ValueError):
        return None
    return node.value if isinstance(node, ast.Expr) else node
