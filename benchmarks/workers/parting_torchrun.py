"""A script of torchrun's users that one rank leaves in another way than the others:
``parting_torchrun.py WAY RANK``."""

import datetime
import sys
import time

import torch
import torch.distributed as dist
from faults.moments import AT_STEP, shows
from torch.nn.parallel import DistributedDataParallel


def train(way: str, culprit: bool) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    end = time.monotonic() + (3 if culprit else 60)
    for step in range(1, 400):
        time.sleep(0.02)
        x = torch.randn(16, 8)
        try:
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            is_now = culprit and step == AT_STEP
            own_loss = 0.0 if is_now else loss.item() + 1.0
            if is_now:
                shows()
            optimizer.step()
            if way == "catch_error" and is_now:
                raise ValueError("no picture of step 30")
        except ValueError:
            break
        optimizer.zero_grad()
        if way == "exit_in_loop" and is_now:
            sys.exit(0)
        if way in ("break_before_evaluation", "break_before_save") and is_now:
            break
        if way == "stop_at_own_loss" and own_loss < 0.5:
            break
        if way == "return_early" and is_now:
            return
        if way == "stop_by_own_clock" and time.monotonic() > end:
            shows()
            break
    if way == "break_before_save":
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), "model.pt")
        dist.barrier()
    if way in ("break_before_evaluation", "catch_error"):
        metrics = torch.zeros(2)
        dist.all_reduce(metrics)


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
    train(sys.argv[1], culprit=dist.get_rank() == int(sys.argv[2]))
    dist.destroy_process_group()
