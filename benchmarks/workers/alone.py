"""A script whose processes train separately: ``alone.py WAY``. It is not distributed, and does not
report that."""

import sys
import time

import torch
from faults.moments import shows

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seconds = {"train_alone": 8, "train_alone_for_long": 80}[sys.argv[1]]
end = time.monotonic() + seconds
if sys.argv[1] == "train_alone_for_long":
    shows()
while time.monotonic() < end:
    time.sleep(0.05)
    x = torch.randn(16, 8)
    (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
shows()
