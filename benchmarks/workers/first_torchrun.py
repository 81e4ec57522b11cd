"""The same as ``first_lockstep.py``, written for torchrun: ``first_torchrun.py FILE``."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    # The monotonic clock is the machine's, so the benchmark can subtract its own reading.
    Path(sys.argv[1]).write_text(f"{time.monotonic()} {total.item():.0f}", encoding="utf-8")
dist.destroy_process_group()
