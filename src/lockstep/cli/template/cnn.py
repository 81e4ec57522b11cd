"""Train a convolutional network to classify images, on one process or on many, with the same answer.

python train.py                                one process
lockstep run --nproc-per-node 2 train.py       two
lockstep verify train.py                       is it the same answer?
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make_data(num_samples):
    """Stripes in four directions, in noise; put your data set here."""
    generator = torch.Generator().manual_seed(num_samples)  # the same data in every process
    labels = torch.arange(num_samples) % 4
    angles = (torch.pi / 4 * labels)[:, None, None]
    shifts = 2 * torch.pi * torch.rand(num_samples, 1, 1, generator=generator)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    images = torch.sin(x * angles.cos() + y * angles.sin() + shifts)
    images += 2.0 * torch.randn(num_samples, 16, 16, generator=generator)
    return TensorDataset(images[:, None], labels)


def make_model():
    """Your model here: without .to(device) and without a wrapper, lockstep does both."""

    def block(channels_in, channels_out):
        convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        return [convolution, nn.GroupNorm(4, channels_out), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 4))


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
    state = team.state(best=0.0, bad=0)  # saved in checkpoints: plain variables would start over when the run resumes
    for epoch in team.epochs(args.epochs):
        for batch in loader:  # one iteration is one step, on every process
            for images, labels in batch.shards:  # this process's part of the batch
                loss = criterion(model(images), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])  # of the whole batch, and equal on every process
        with team.evaluate(model, val_loader) as evaluation:
            for batch in evaluation:
                for images, labels in batch.shards:
                    batch.add(accuracy=model(images).argmax(1) == labels)
        accuracy = evaluation["accuracy"]
        team.best(accuracy)  # keeps the best weights, in best/ of the run directory
        state.best, state.bad = (accuracy, 0) if accuracy > state.best else (state.best, state.bad + 1)
        team.print(f"epoch {epoch + 1}: accuracy {accuracy:.2%}, best {state.best:.2%}")
        if state.bad == args.patience:
            break


if __name__ == "__main__":
    main()
