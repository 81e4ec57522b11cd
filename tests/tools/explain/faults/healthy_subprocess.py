"""One rank waits for a program that computes."""

import subprocess
import sys
import time

import torch
import torch.distributed as dist

COMPUTE = """
import os, time, zlib
end = time.monotonic() + 20
while time.monotonic() < end:
    zlib.compress(os.urandom(1 << 18))
"""

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(80):
    time.sleep(0.01)
    model(torch.randn(8, 4)).square().mean().backward()
    if step == 40 and dist.get_rank() == int(sys.argv[1]):
        subprocess.run([sys.executable, "-c", COMPUTE], check=True)
dist.destroy_process_group()
