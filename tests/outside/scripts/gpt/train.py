"""python -m gpt.train: a trainer in a package, with relative imports, spawned loader workers, and its text from stdin."""

import os
import sys
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from .model import GPT, GPTConfig

ddp = int(os.environ.get("RANK", -1)) != -1


class CharDataset(Dataset):
    """Defined in __main__, and so what spawned loader workers must be able to import."""

    def __init__(self, text, block_size):
        self.codes, self.block_size = [ord(c) % 16 for c in text], block_size

    def __len__(self):
        return len(self.codes) - self.block_size

    def __getitem__(self, i):
        chunk = torch.tensor(self.codes[i : i + self.block_size + 1])
        return chunk[:-1], chunk[1:]


def main():
    start_method = sys.argv[1] if len(sys.argv) > 1 else "spawn"
    config = replace(GPTConfig(), lr=5e-3)
    if ddp:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    text = [sys.stdin.read() if rank == 0 else None]
    if ddp:
        dist.broadcast_object_list(text, src=0)
    data = CharDataset(text[0], config.block_size)
    torch.manual_seed(1337)
    model = GPT(config)
    model = DDP(model) if ddp else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    sampler = DistributedSampler(data, drop_last=True) if ddp else None
    loader = DataLoader(
        data, batch_size=4, sampler=sampler, num_workers=1, multiprocessing_context=start_method, persistent_workers=True
    )
    losses = []
    for epoch in range(2):
        if ddp:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
    total = sum(p.double().sum().item() for p in model.parameters())
    print(f"rank {rank}: {len(losses)} steps, loss {losses[0]:.5f} -> {losses[-1]:.5f}, weights {total:.9f}")
    if ddp:
        time.sleep(0.5)  # see conftest.py
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
