"""A script as torchrun's users have it, with a fault on one rank: ``faulty_torchrun.py FAULT
RANK``.

With ``traceml`` behind these, it has the two lines that TraceML asks for.
"""

import contextlib
import datetime
import sys

import faults
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

name, culprit = sys.argv[1], int(sys.argv[2])
faults.before_joining(name, culprit)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
fault = name if dist.get_rank() == culprit else None
torch.manual_seed(0)
model = DistributedDataParallel(faults.Net(fault))
optimizer = torch.optim.SGD(model.parameters(), **faults.options_of(fault))
data = faults.data_of(name, fault)
sampler = DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=5, sampler=sampler, **faults.loader_options(name, fault))
traced = contextlib.nullcontext
if sys.argv[3:] == ["traceml"]:
    import traceml_ai

    traceml_ai.init(mode="auto")
    traced = traceml_ai.trace_step
faults.before_loop(name, culprit)
for step, (x, y) in enumerate(loader, 1):
    with traced(model):
        faults.in_forward(fault, step)
        (model(x) - y).square().mean().backward()
        faults.after_backward(fault)
        optimizer.step()
        optimizer.zero_grad()
    if not faults.after_step(name, fault, step, model):
        break
dist.destroy_process_group()
