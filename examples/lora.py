"""Fine-tuning with LoRA: the model's weights are frozen, and small matrices next to them learn.

python examples/lora.py                                    one process
lockstep run --nproc-per-node 2 examples/lora.py           two processes

At the end, lora.pt in the run directory contains what was learned: a few percent of the model.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class LoRA(nn.Module):
    """A frozen layer plus a trained product ``up @ down`` of low rank, which starts at 0."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


def make_model(rank):
    """Returns a model with random weights.

    For weights from a file, begin with ``model.load_state_dict(lockstep.load_weights(path))``.
    """
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    model.requires_grad_(False)
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, LoRA(layer, rank))
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--rank", type=int, default=4)
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    loader = DataLoader(torch.utils.data.Subset(data, range(1437)), args.batch_size, shuffle=True)
    test_loader = DataLoader(torch.utils.data.Subset(data, range(1437, 1797)), args.batch_size)
    model = make_model(args.rank)
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.AdamW(learning.values(), lr=args.lr)
    count = sum(parameter.numel() for parameter in learning.values())
    team.print(f"{count} of {sum(parameter.numel() for parameter in model.parameters())} numbers learn")

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for images, labels in batch.shards:
                loss = nn.functional.cross_entropy(model(images), labels)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for images, labels in batch.shards:
                    batch.add(accuracy=model(images).argmax(1) == labels)
        team.print(f"epoch {epoch + 1}: accuracy {evaluation['accuracy']:.2%}")

    if team.is_main:
        torch.save({name: value for name, value in model.state_dict().items() if name in learning}, team.run_dir / "lora.pt")


if __name__ == "__main__":
    main()
