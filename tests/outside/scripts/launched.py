"""A trainer of torch.distributed.launch's time: --local_rank, autocast, and losses and hits added up on rank 0."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", default=-1, type=int, help="node rank for distributed training")
parser.add_argument("--num_epoch", default=2, type=int)
parser.add_argument("--batch_size", default=8, type=int, help="of each process")
parser.add_argument("--amp", action="store_true")
opt = parser.parse_args()


def evaluate(model, loader):
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for input, target in loader:
            output = model(input)
            loss = nn.functional.cross_entropy(output, target, reduction="sum")
            sums += torch.stack([loss.double(), (output.argmax(1) == target).sum(), torch.tensor(len(target))])
    dist.reduce(sums, 0, op=dist.ReduceOp.SUM)
    model.train()
    return sums


def main():
    dist.init_process_group(backend="gloo", init_method="env://")
    assert opt.local_rank == dist.get_rank()
    if torch.cuda.is_available():
        torch.cuda.set_device(opt.local_rank % torch.cuda.device_count())
    torch.manual_seed(0)
    train_dataset, test_dataset = (TensorDataset(torch.randn(n, 3, 8, 8), torch.arange(n) % 4) for n in (64, 32))
    train_sampler = DistributedSampler(train_dataset)
    train_loader = DataLoader(train_dataset, batch_size=opt.batch_size, sampler=train_sampler)
    test_loader = DataLoader(
        test_dataset, batch_size=opt.batch_size, sampler=DistributedSampler(test_dataset, shuffle=False)
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 4))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(opt.num_epoch):
        train_sampler.set_epoch(epoch)
        for input, target in train_loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=opt.amp):
                loss = nn.functional.cross_entropy(model(input), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss, hits, count = evaluate(model, test_loader).tolist()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss / count:.6f}, {hits:.0f} of {count:.0f} right")
            torch.save(model.module.state_dict(), "model.pt")
    time.sleep(0.5)  # see conftest.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
