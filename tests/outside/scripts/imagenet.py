"""Chooses its way by its options, as ImageNet's main.py does: env:// of a launcher, or a process a GPU by mp.spawn."""

import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser(description="PyTorch training")
parser.add_argument("-b", "--batch-size", default=8, type=int)
parser.add_argument("-j", "--workers", default=1, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--world-size", default=-1, type=int, help="number of nodes for distributed training")
parser.add_argument("--rank", default=-1, type=int, help="node rank for distributed training")
parser.add_argument("--dist-url", default="env://", type=str)
parser.add_argument("--dist-backend", default="gloo", type=str)
parser.add_argument("--multiprocessing-distributed", action="store_true")
best_acc1 = 0


def main():
    args = parser.parse_args()
    if args.dist_url == "env://" and args.world_size == -1:
        args.world_size = int(os.environ["WORLD_SIZE"])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus_per_node = torch.cuda.device_count() or 2
    if args.multiprocessing_distributed:
        args.world_size = ngpus_per_node * args.world_size
        mp.spawn(main_worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))
    else:
        main_worker(None, ngpus_per_node, args)


def main_worker(gpu, ngpus_per_node, args):
    global best_acc1
    if args.distributed:
        if args.dist_url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(args.dist_backend, init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = torch.nn.parallel.DistributedDataParallel(model) if args.distributed else model
    criterion = torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    train_data, val_data = (TensorDataset(torch.randn(n, 6), torch.randint(4, (n,))) for n in (64, 18))
    train_sampler = DistributedSampler(train_data) if args.distributed else None
    val_sampler = DistributedSampler(val_data, shuffle=False, drop_last=True) if args.distributed else None
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_data, shuffle=train_sampler is None, sampler=train_sampler, **options)
    val_loader = DataLoader(val_data, shuffle=False, sampler=val_sampler, **options)
    for epoch in range(args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        for images, target in train_loader:
            loss = criterion(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc1 = validate(val_loader, val_data, model, args)
        scheduler.step()
        is_best, best_acc1 = acc1 > best_acc1, max(acc1, best_acc1)
        if not args.distributed or args.rank % ngpus_per_node == 0:
            torch.save({"epoch": epoch + 1, "state_dict": model.state_dict(), "best_acc1": best_acc1}, "checkpoint.pth.tar")
            if is_best:
                shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")
    total = sum(p.double().sum().item() for p in model.parameters())
    print(f"rank {args.rank} of {args.world_size}: loss {loss.item():.6f} Acc@1 {acc1:.3f} weights {total:.9f}")
    if args.distributed:
        time.sleep(0.5)  # see conftest.py
        dist.destroy_process_group()


def validate(loader, data, model, args):
    count = torch.zeros(2, dtype=torch.float64)
    loaders = [loader]
    if args.distributed and len(loader.sampler) * args.world_size < len(data):
        rest = Subset(data, range(len(loader.sampler) * args.world_size, len(data)))
        loaders.append(DataLoader(rest, batch_size=args.batch_size))
    with torch.no_grad():
        for images, target in loaders[0]:
            count += torch.tensor([(model(images).argmax(1) == target).sum(), len(target)])
        if args.distributed:
            dist.all_reduce(count)
        for images, target in (batch for rest in loaders[1:] for batch in rest):
            count += torch.tensor([(model(images).argmax(1) == target).sum(), len(target)])
    return 100 * (count[0] / count[1]).item()


if __name__ == "__main__":
    main()
