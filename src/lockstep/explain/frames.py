"""A thread's stack as it is recorded and shown."""

from __future__ import annotations

from types import FrameType

MOST_FRAMES = 40

Frame = tuple[str, int, str]
"""File, line, and function."""


def stack_of(frame: FrameType | None) -> list[Frame]:
    """A thread's stack from its innermost ``frame`` on, innermost first; the outermost frames of a deep one are left out."""
    frames: list[Frame] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames
