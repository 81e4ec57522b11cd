"""Faults that are met in training scripts, and what must be reported of each: the table of
``test_fault_rows.py``.

The scripts are in ``faults/``. Their first argument is the number of the rank that is the culprit;
comments at the ends of lines (``# CULPRIT``, ``# OTHERS``) mark where the ranks are when they are
reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "faults"
CULPRIT, OTHERS = "culprit", "others"
WORLDS = ((2, 1), (3, 0))
"""Numbers of processes, and which of them is the culprit."""


@dataclass(frozen=True)
class Row:
    """One fault."""

    script: str
    kind: str
    """Of the report; empty: there must be none."""
    cause: str = ""
    args: tuple[str, ...] = ()
    """Of the script, after the culprit's number."""
    lines: dict[str, str] = field(default_factory=lambda: {CULPRIT: "CULPRIT"})
    """By role, the mark of the line that the report must name for such ranks."""
    has_place: bool = True
    """Whether the places are always known. (A right one or none: the kernel tells too little on a
    busy machine.)"""
    calls: dict[str, str] = field(default_factory=dict)
    """By role, a regular expression for the call that it must name."""
    blames: bool = True
    """Whether it must name the culprit, and no other. Of calls that do not belong together it may
    name no rank, or all."""
    wait_s: float = 12.0
    """About how long it takes."""
    quick: bool = False
    ends: bool = False
    """Whether the launch ends by itself."""
    worlds: tuple[tuple[int, int], ...] = WORLDS
    shm: str = ""
    """The size of /dev/shm, for one that is made small."""

    @property
    def name(self) -> str:
        """For the test."""
        return "-".join((self.script, *self.args))

    @property
    def path(self) -> Path:
        """Of the script."""
        return SCRIPTS / f"{self.script}.py"

    def lines_of(self, mark: str) -> set[int]:
        """The numbers of the lines that end with this mark: several if it depends on the moment
        which one is reported."""
        numbers = {
            number for number, line in enumerate(self.path.read_text().splitlines(), 1) if re.search(rf"# {mark}\b", line)
        }
        assert numbers, f"no line of {self.path} has the mark {mark}"
        return numbers


BOTH = {CULPRIT: "CULPRIT", OTHERS: "OTHERS"}


def differs(
    cause: str, script: str, culprits: str, others: str, *args: str, others_at: str = "OTHERS", **more: object
) -> Row:
    """Ranks in collectives that do not belong together: both calls are named with their lines."""
    lines = {CULPRIT: args[-1], OTHERS: others_at} if args else BOTH
    return Row(script, "mismatch", cause, args, lines=lines, calls={CULPRIT: culprits, OTHERS: others}, blames=False, **more)


ROWS = [
    Row("slow_line", "slow", "script", wait_s=45.0),
    Row("slow_disk", "slow", "storage", wait_s=45.0),
    Row("healthy_subprocess", "", wait_s=25.0, worlds=((2, 1),)),
    Row("healthy_evaluation", "", wait_s=22.0, worlds=((2, 1),)),
    Row("healthy_evaluation_in_loop", "", wait_s=22.0),
    # a rank that does not answer
    Row("holds_gil", "waiting", "holds_gil"),
    Row("backtracks", "waiting", "holds_gil", has_place=False, ends=True),
    # calls that do not belong together
    differs("kind", "unrecorded", "monitored_barrier", "all_reduce", "monitored_barrier"),
    differs("kind", "unrecorded", "init_device_mesh", "all_reduce", "init_device_mesh"),
    differs("kind", "unrecorded", "all_gather", "all_reduce", "all_gather_object"),
    differs("kind", "unrecorded", "DistributedDataParallel|all_?gather", "all_reduce", "DistributedDataParallel"),
    differs("kind", "unrecorded", "new_group", "all_reduce", "new_group"),
    differs("kind", "in_loop", "new_group", "", "new_group"),
    differs("kind", "in_loop", "all_gather", "all_gather", "all_gather", wait_s=2.0, ends=True),
    differs("root", "broadcast_src", "broadcast", "broadcast"),
    differs("root", "in_loop", "broadcast", "broadcast", "broadcast", others_at="LEADER"),
    differs("size", "other_size", r"all_reduce.*\[3\]", r"all_reduce.*\[2000\]", wait_s=2.0, quick=True, ends=True),
    differs("dtype", "other_type", r"all_reduce.*[iI]nt", r"all_reduce.*[fF]loat", wait_s=2.0, ends=True),
    differs("group", "crossed_groups", "all_reduce.*group", "all_reduce.*group"),
    # loader workers
    Row("worker_stopped", "loader", "stopped"),
    Row("full_shm", "loader", "shm", shm="24m", worlds=((2, 1),)),
    # ranks that end apart
    Row("system_exit", "parted", "sys.exit", lines=BOTH, wait_s=3.0, quick=True, ends=True),
    Row("break_before_evaluation", "parted", "break", lines=BOTH, wait_s=3.0, quick=True, ends=True),
    Row("thread_left", "lingering", "thread"),
]
