"""A painter and a judge: two models with two optimizers, trained against each other on digits.

python examples/gan.py                                  one process
lockstep run --nproc-per-node 2 examples/gan.py         two processes

At the end, gan.png in the run directory shows paintings, if Pillow is installed.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader

import lockstep

NOISE = 32  # the size of the painter's input


def make_painter():
    return nn.Sequential(
        nn.Linear(NOISE, 256), nn.BatchNorm1d(256), nn.ReLU(),
        nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(),
        nn.Linear(256, 64), nn.Sigmoid(), nn.Unflatten(1, (8, 8)),
    )  # fmt: skip


def make_judge():
    """Returns a network that computes one number per picture: above 0 for "real".

    It has no BatchNorm, because digits and paintings are in separate batches.
    """
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.LeakyReLU(0.2), nn.Dropout(0.3),
        nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Dropout(0.3),
        nn.Linear(256, 1), nn.Flatten(0),
    )  # fmt: skip


def judged(opinions, as_real):
    """Returns the loss of a judge for whom all these pictures should be real, or none of them."""
    return nn.functional.binary_cross_entropy_with_logits(opinions, torch.full_like(opinions, float(as_real)))


def save_grid(paintings, path, across=8, scale=4):
    """Saves all pictures as one image, in rows of ``across``."""
    try:
        from PIL import Image
    except ImportError:
        return
    framed = nn.functional.pad(paintings, (1, 1, 1, 1), value=0.5)
    pixels = torch.cat([torch.cat(row.unbind(), dim=1) for row in framed.split(across)]).mul(255).round().byte()
    Image.fromarray(pixels.cpu().numpy()).resize((scale * pixels.shape[1], scale * pixels.shape[0]), 0).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32, help="samples in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    digits = torch.tensor(load_digits().images, dtype=torch.float32) / 16
    loader = DataLoader(digits[:1437], args.batch_size, shuffle=True)
    test_loader = DataLoader(digits[1437:], args.batch_size)
    painter, judge = make_painter(), make_judge()
    painter_optimizer = torch.optim.Adam(painter.parameters(), lr=args.lr, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=args.lr, betas=(0.5, 0.999))

    painter, judge, painter_optimizer, judge_optimizer, loader = team.prepare(
        painter, judge, painter_optimizer, judge_optimizer, loader
    )
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for pictures in batch.shards:  # trains the judge
                paintings = painter(torch.randn(len(pictures), NOISE, device=team.device)).detach()
                loss = judged(judge(pictures), True) + judged(judge(paintings), False)
                team.backward(loss)
                batch.add(judge_loss=loss)
            judge_optimizer.step()
            for pictures in batch.shards:  # then trains the painter, with the updated judge
                paintings = painter(torch.randn(len(pictures), NOISE, device=team.device))
                loss = judged(judge(paintings), True)
                team.backward(loss)
                batch.add(painter_loss=loss)
            painter_optimizer.step()
            painter_optimizer.zero_grad()
            judge_optimizer.zero_grad()  # the painter's loss has added to these gradients
            team.log(judge_loss=batch["judge_loss"], painter_loss=batch["painter_loss"])
        with team.evaluate([painter, judge], test_loader) as evaluation:
            for batch in evaluation:
                for pictures in batch.shards:
                    paintings = painter(torch.randn(len(pictures), NOISE, device=team.device))
                    batch.add(real=judge(pictures) > 0, painted=judge(paintings) > 0)
        summary = f"{evaluation['real']:.1%} of the digits and {evaluation['painted']:.1%} of the paintings"
        team.print(f"epoch {epoch + 1}: the judge takes {summary} for real")

    painter.eval()
    with torch.no_grad():
        paintings = painter(torch.randn(64, NOISE, device=team.device))
    if team.is_main:
        save_grid(paintings, team.run_dir / "gan.png")


if __name__ == "__main__":
    main()
