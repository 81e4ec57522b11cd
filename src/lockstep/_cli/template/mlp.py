"""Train a classifier on one process or on many, with bit-identical results.

python train.py                                one process
lockstep run --nproc-per-node 2 train.py       two
lockstep verify train.py                       compare the results
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make_data(num_samples):
    """Two interleaved spirals; put your dataset here."""
    generator = torch.Generator().manual_seed(num_samples)  # the same data in every process
    labels = torch.arange(num_samples) % 2
    turns = torch.rand(num_samples, generator=generator) + 0.1
    angles = 2 * torch.pi * turns + torch.pi * labels
    points = turns[:, None] * torch.stack([angles.cos(), angles.sin()], 1)
    return TensorDataset(points + 0.02 * torch.randn(num_samples, 2, generator=generator), labels)


def make_model():
    """Your model here: without .to(device) and without a wrapper, lockstep does both."""
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--patience", type=int, default=5, help="stop after so many epochs without a better accuracy")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(make_data(2000), args.batch_size, shuffle=True)
    val_loader = DataLoader(make_data(500), args.batch_size)
    criterion = nn.CrossEntropyLoss()

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    # saved in checkpoints: plain variables would start over when the run resumes
    state = team.state(best=0.0, bad=0)
    for epoch in team.epochs(args.epochs):
        for batch in loader:  # one iteration is one step, on every process
            for points, labels in batch.shards:  # this process's part of the batch
                loss = criterion(model(points), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])  # of the whole batch, and equal on every process
        with team.evaluate(model, val_loader) as evaluation:
            for batch in evaluation:
                for points, labels in batch.shards:
                    batch.add(accuracy=model(points).argmax(1) == labels)
        accuracy = evaluation["accuracy"]
        team.best(accuracy)  # keeps the best weights, in best/ of the run directory
        state.best, state.bad = (accuracy, 0) if accuracy > state.best else (state.best, state.bad + 1)
        team.print(f"epoch {epoch + 1}: accuracy {accuracy:.2%}, best {state.best:.2%}")
        if state.bad == args.patience:
            break


if __name__ == "__main__":
    main()
