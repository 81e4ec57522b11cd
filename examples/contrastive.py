"""Contrastive learning over the whole batch (SimCLR, on handwritten digits), which no process has.

python examples/contrastive.py                             one process
lockstep run --nproc-per-node 2 examples/contrastive.py    two

Each step embeds all samples, computes the loss of the whole batch and its gradient with respect to the embeddings, and
then passes that gradient through the model, shard by shard (GradCache). It is the gradient of one device with the whole
batch, as the last line of ``lockstep verify`` shows.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep


class Pairs(Dataset):
    """Two views of each digit. They are made here, for both passes over a batch must see the same."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.stack([self.view(self.images[index]) for _ in range(2)])

    def view(self, image):
        shift = torch.randint(-1, 2, (2,)).tolist()
        return image.roll(shift, dims=(0, 1)) + 0.2 * torch.randn(8, 8)


def make_model():
    """Without dropout and BatchNorm, which would give the second pass other embeddings."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 32))


def contrast(embeddings, temperature=0.2):
    """Each view should find the other one of its digit among all views of the batch."""
    views = torch.cat([embeddings[:, 0], embeddings[:, 1]])
    alike = views @ views.T / temperature - 1e9 * torch.eye(len(views), device=views.device)
    return cross_entropy(alike, torch.arange(len(views), device=views.device).roll(len(embeddings)))


def embed(model, views):
    return normalize(model(views.flatten(0, 1)), dim=1).unflatten(0, views.shape[:2])


def pass_back(team, model, batch):
    """The backward pass of the whole batch's loss, which is returned."""
    with torch.no_grad():
        mine = [embed(model, views) for views in batch.shards]
    ranks = team.all_gather_object(mine)  # in the order of the ranks, which is that of the shards
    everyone = torch.cat([part.to(team.device) for parts in ranks for part in parts]).requires_grad_()
    loss = contrast(everyone)
    (gradient,) = torch.autograd.grad(loss, everyone)
    first = sum(len(part) for parts in ranks[: team.rank] for part in parts)
    for views in batch.shards:
        team.backward((embed(model, views) * gradient[first : first + len(views)]).sum(), reduction="sum")
        first += len(views)
    return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()

    team = lockstep.join()
    images, labels = (torch.tensor(found) for found in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 8, 8) / 16
    loader = DataLoader(Pairs(images[:1437]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[1437:], labels[1437:]), args.batch_size)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            loss = pass_back(team, model, batch)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=loss)
        with torch.no_grad():
            known = normalize(model(images[:1437].to(team.device)), dim=1)
        with team.evaluate(model, test_loader) as batches:
            for pictures, digits in batches:
                nearest = (normalize(model(pictures), dim=1) @ known.T).argmax(1).cpu()
                batches.add(accuracy=labels[nearest] == digits.cpu())
        team.print(f"epoch {epoch + 1}: loss {loss:.4f}, nearest neighbour of the same digit {batches['accuracy']:.2%}")


if __name__ == "__main__":
    main()
