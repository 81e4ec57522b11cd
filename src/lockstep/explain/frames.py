"""The stack of a thread, as it is kept and shown."""

from __future__ import annotations

from types import FrameType

MOST_FRAMES = 40

Frame = tuple[str, int, str]
"""File, line, and function."""


def stack_of(frame: FrameType | None) -> list[Frame]:
    """The frames of a thread from its innermost on, innermost first."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames
