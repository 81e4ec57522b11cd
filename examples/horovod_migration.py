"""One training twice: written for Horovod and for lockstep. Lines with the same number correspond.

python examples/horovod_migration.py                                             one process
lockstep run --nproc-per-node 2 examples/horovod_migration.py                    two processes
lockstep run --nproc-per-node 2 --strategy horovod examples/horovod_migration.py the sums by Horovod
horovodrun --gloo -np 2 python examples/horovod_migration.py --original          Horovod alone

Both print the same numbers. Without --original, Horovod need not be installed.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import lockstep

BATCH = 64  # samples in a step, over all processes


def train_with_horovod(model, train, test, epochs, lr):
    import horovod.torch as hvd

    hvd.init()  # 1
    sampler = DistributedSampler(train, hvd.size(), hvd.rank(), shuffle=False)  # 2
    loader = DataLoader(train, BATCH // hvd.size(), sampler=sampler, drop_last=True)
    # 3: repeats samples if processes do not divide their number
    own_test = DistributedSampler(test, hvd.size(), hvd.rank(), shuffle=False)
    test_loader = DataLoader(test, BATCH, sampler=own_test)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 4
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 5
        model.train()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()  # 6
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        losses, hits, count = 0.0, 0.0, 0
        with torch.no_grad():
            for images, labels in test_loader:
                logits = model(images)
                losses += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
                hits += (logits.argmax(1) == labels).sum().item()
                count += len(labels)
        results = hvd.allreduce(torch.tensor([losses, hits]) / count, op=hvd.Average)  # 7
        if hvd.rank() == 0:  # 8
            print(f"epoch {epoch + 1}: test loss {results[0]:.4f}, accuracy {results[1]:.2%}")


def train_with_lockstep(model, train, test, epochs, lr):
    team = lockstep.join(shards=8)  # 1
    loader = DataLoader(train, BATCH, drop_last=True)  # 2: the batch of the script for one process
    test_loader = DataLoader(test, BATCH)  # 3: each sample once
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model, optimizer, loader = team.prepare(model, optimizer, loader)  # 4

    for epoch in team.epochs(epochs):  # 5
        for batch in loader:
            for images, labels in batch.shards:
                loss = nn.functional.cross_entropy(model(images), labels)
                team.backward(loss)  # 6
            optimizer.step()
            optimizer.zero_grad()
        with team.evaluate(model, test_loader) as evaluation:  # 7
            for batch in evaluation:
                for images, labels in batch.shards:
                    logits = model(images)
                    batch.add(loss=nn.functional.cross_entropy(logits, labels), accuracy=logits.argmax(1) == labels)
        # 8
        team.print(f"epoch {epoch + 1}: test loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.2%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--original", action="store_true", help="run the version for Horovod")
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    train, test = (torch.utils.data.Subset(digits, part) for part in (range(1437), range(1437, 1797)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    (train_with_horovod if args.original else train_with_lockstep)(model, train, test, args.epochs, args.lr)


if __name__ == "__main__":
    main()
