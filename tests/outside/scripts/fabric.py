"""Lightning Fabric, which starts a process a device by itself, unless a launcher has started them."""

import time

import torch
from lightning_fabric import Fabric

if __name__ == "__main__":
    torch.manual_seed(0)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        inputs = torch.full((2, 4), float(fabric.global_rank + step))
        fabric.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    print(
        f"rank {fabric.global_rank} of {fabric.world_size}: {sum(p.sum().item() for p in model.parameters()):.6f}",
        flush=True,
    )
    time.sleep(0.5)  # see conftest.py
    torch.distributed.destroy_process_group()
