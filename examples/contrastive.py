"""Contrastive learning (as in CLIP) over the global batch: halves of digits find each other.

python examples/contrastive.py                             one process
lockstep run --nproc-per-node 2 examples/contrastive.py    two processes

No process has the global batch. Each step embeds all samples, computes the loss of the global batch
and its gradient with respect to the embeddings, and passes that gradient through the model, shard
by shard (GradCache). The result is the gradient of one device with the global batch, as the last
line of ``lockstep verify`` shows.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def make_tower():
    """Returns a network without dropout and BatchNorm: both passes must compute the same."""
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 32))


def embed(model, upper, lower):
    """Returns two embeddings of a digit: of its upper half and of its lower half."""
    return torch.stack([normalize(model["upper"](upper)), normalize(model["lower"](lower))], dim=1)


def contrast(embeddings, temperature=0.1):
    """Returns the loss of finding, for each half, the other half of its digit in the batch."""
    logits = embeddings[:, 0] @ embeddings[:, 1].T / temperature
    target = torch.arange(len(logits), device=logits.device)
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def pass_back(team, model, batch):
    """Runs the backward pass of the global batch's loss, and returns the loss."""
    with torch.no_grad():
        embeddings, slices = team.all_gather_rows([embed(model, *halves) for halves in batch.shards])
    embeddings.requires_grad_()
    loss = contrast(embeddings)
    (gradient,) = torch.autograd.grad(loss, embeddings)
    for halves, rows in zip(batch.shards, slices, strict=True):
        team.backward((embed(model, *halves) * gradient[rows]).sum(), reduction="sum")
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    digits = torch.tensor(load_digits().images, dtype=torch.float32) / 16
    data = TensorDataset(digits[:1437, :4], digits[:1437, 4:])
    test_data = TensorDataset(digits[1437:, :4], digits[1437:, 4:])
    loader = DataLoader(data, args.batch_size, shuffle=True)
    test_loader = DataLoader(test_data, 60)
    model = nn.ModuleDict({"upper": make_tower(), "lower": make_tower()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            loss = pass_back(team, model, batch)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=loss)
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for halves in batch.shards:
                    found = embed(model, *halves)
                    best = (found[:, 0] @ found[:, 1].T).topk(5).indices
                    target = torch.arange(len(found), device=team.device)[:, None]
                    batch.add(loss=contrast(found), top5=(best == target).any(1))
        team.print(f"epoch {epoch + 1}: test loss {evaluation['loss']:.4f}, top-5 of 60 {evaluation['top5']:.2%}")


if __name__ == "__main__":
    main()
