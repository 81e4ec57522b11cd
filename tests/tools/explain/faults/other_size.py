"""One rank averages a value that the others do not have: of another size than what they reduce
meanwhile."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
is_culprit = dist.get_rank() == int(sys.argv[1])


def average_accuracy():
    dist.all_reduce(torch.zeros(3))  # CULPRIT


def average_gradients():
    dist.all_reduce(torch.zeros(2000))  # OTHERS


for step in range(50):
    time.sleep(0.01)
    if step == 40 and is_culprit:
        average_accuracy()
    average_gradients()
