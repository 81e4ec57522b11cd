"""A regular expression of one rank backtracks: it computes, so that it is named only when the
others no longer wait."""

import datetime
import re
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=12))
is_culprit = dist.get_rank() == int(sys.argv[1])


def tokenize(text):
    return re.match(r"(\w+\s?)+$", text)  # CULPRIT


for step in range(1000):
    time.sleep(0.01)
    dist.all_reduce(torch.zeros(16))
    if step == 40 and is_culprit:
        tokenize("a" * 50 + "!")
