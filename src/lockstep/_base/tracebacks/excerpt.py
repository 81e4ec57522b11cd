"""Builds what is shown of an error: its message, where in the user's code it was raised, and what
caused it there. Pure.

The frames of lockstep, PyTorch and other libraries are left out; LOCKSTEP_TRACEBACK=full shows
them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep._base.errors import LockstepError
from lockstep._base.tracebacks.frames import Frame, owner, short_path


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields the exception, and those from which or during whose handling it was raised, in the
    order in which tracebacks show them: the oldest last."""
    # A script can make a chain that leads back to itself.
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def message_of(error: object) -> str:
    """The message of an exception, whatever the user's class does."""
    try:
        return str(error)
    except Exception:
        return "(its message could not be made)"


_NOISE = re.compile(r"\[/\S*/gloo/\S+\] |\s*This is typically caused by [^\n]*GLHF![^\n]*")
"""Additions of Gloo to its errors: a line of its source, and advice to look into the logs of the
other side."""
_WRAPPED = re.compile(r"Caught \w+ in (.+)\.\nOriginal Traceback")
"""The form in which PyTorch raises an exception of a loader worker, a thread or a replica: its
traceback is the message."""
_HEADER = re.compile(r"^(?:Original )?Traceback \(most recent call last\):\n", re.MULTILINE)
_NEXT = re.compile(r"\n\n(?=The above exception was the direct cause|During handling of the above exception)")
_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_POINTERS = re.compile(r"\n +[~^]+ *$", re.MULTILINE)
"""Lines of a traceback that point at a part of the line above."""

_MOST = 20
"""The largest number of frames that are shown of one exception."""


@dataclass(frozen=True, kw_only=True)
class _Link:
    """An exception of a chain."""

    cause: str
    """The clause that introduces it as a cause: its type, and where it was raised."""
    message: str
    frames: list[tuple[Frame, str]]
    """The frames, outermost first, each with its lines of the traceback."""
    notes: str = ""

    def own(self) -> str:
        """Returns the user's frames. Pointers into a line are kept where the error was raised; in
        other frames, the next frame shows the same."""
        *before, last = self.frames or [(("<>", 0, ""), "")]
        own = [_POINTERS.sub("", text) for frame, text in before if owner(frame[0]) == "user"]
        own += [last[1]] if owner(last[0][0]) == "user" else []
        if len(own) > _MOST:  # a recursion
            own[_MOST // 2 : -_MOST // 2] = [f"  ... {len(own) - _MOST} more\n"]
        return "".join(own)


def without_noise(text: str) -> str:
    """An error's text without the additions of libraries."""
    return _NOISE.sub("", text)


def plain_message(error: BaseException) -> str:
    """Returns the message. Where PyTorch raises an exception again, with its traceback as the
    message, returns the message of the original exception."""
    message = without_noise(message_of(error))
    if (wrapped := _WRAPPED.match(message)) is None:
        return message
    return f"{list(_links_in(message, wrapped[1]))[-1].message} (in {wrapped[1]})"


def first_line(message: str) -> str:
    """Returns the first line of a message, with ``...`` if there are more."""
    first, *more = message.strip().splitlines() or [""]
    return f"{first} ..." if more else first


def excerpt(error: BaseException) -> str:
    """Returns the user's frames: first the frames where the error was raised, then the frames of
    its causes. Empty if no frame is the user's: then show the whole traceback. The caller shows the
    error's message."""
    errors = list(chain(error))
    if any(isinstance(each, BaseExceptionGroup) for each in errors):  # a group is a tree
        return ""
    first, *causes = [link for each in errors for link in _links(each)]
    parts, said = [first.own(), _raised_at(first, error), first.notes], message_of(error)
    for link in causes:
        if own := link.own():
            # An error that wraps another one often repeats its message, which is shown once then.
            told, said = link.message in said, said + link.message
            parts += [link.cause + ("\n" if told else f": {link.message}\n"), own, link.notes]
    return "".join(parts).rstrip("\n") if first.own() or len(parts) > 3 else ""


def _raised_at(link: _Link, error: BaseException) -> str:
    """Returns where a library raised the error. An error of lockstep is complete without it."""
    if isinstance(error, LockstepError) or not link.frames or owner(link.frames[-1][0][0]) == "user":
        return ""
    file, line, name = link.frames[-1][0]
    return f"  ... raised at {short_path(file)}:{line} in {name} (LOCKSTEP_TRACEBACK=full shows all frames)\n"


def _links(error: BaseException) -> Iterator[_Link]:
    """Yields the exception and then, newest first, the exceptions of which its message is a
    traceback."""
    message, stack = message_of(error), traceback.extract_tb(error.__traceback__)
    texts = ["".join(traceback.format_list([frame])) for frame in stack]
    frames = [((frame.filename, frame.lineno or 0, frame.name), text) for frame, text in zip(stack, texts, strict=True)]
    notes = "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
    if isinstance(error, SyntaxError):  # the line that cannot be read is in no frame
        notes = "".join(line for line in traceback.format_exception_only(error) if line.startswith("  ")) + notes
    yield _Link(cause=f"caused by {type(error).__qualname__}", message=message, frames=frames, notes=notes)
    if (wrapped := _WRAPPED.match(message)) is not None:
        yield from reversed(list(_links_in(message, wrapped[1])))


def _links_in(message: str, where: str) -> Iterator[_Link]:
    """The exceptions of a traceback's text, as it shows them: the oldest first."""
    for part in _HEADER.split(message)[1:]:
        frames, rest = list[tuple[Frame, str]](), _NEXT.split(part)[0]
        while rest.startswith("  "):
            line, _, rest = rest.partition("\n")
            if (at := _FRAME.match(line)) is not None:
                frames.append(((at[1], int(at[2]), at[3]), f"{line}\n"))
            elif frames:
                frames[-1] = (frames[-1][0], f"{frames[-1][1]}{line}\n")
        kind, _, said = rest.strip().partition(": ")
        yield _Link(cause=f"caused in {where} by {kind.rpartition('.')[2]}", message=said, frames=frames)
