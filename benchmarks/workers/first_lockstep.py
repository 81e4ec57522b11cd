"""A lockstep script that does its first all-reduce, and notes when rank 0 had it:
``first_lockstep.py FILE``."""

import sys
import time
from pathlib import Path

import torch

import lockstep

team = lockstep.join()
total = team.all_reduce(torch.ones(1))
if team.is_main:
    # The monotonic clock is the machine's, so the benchmark can subtract its own reading.
    Path(sys.argv[1]).write_text(f"{time.monotonic()} {total.item():.0f}", encoding="utf-8")
