"""The shape of nanoGPT."""

import math
import textwrap
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import lockstep

batch_size, block_size, accumulation = 8, 32, 2
max_iters, warmup_iters, eval_interval, eval_iters = 20, 5, 10, 4

torch.manual_seed(1337)
team = lockstep.join(shards=4, accumulate=accumulation)
data = torch.tensor(list(Path(textwrap.__file__).read_bytes()))
train_data, val_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(split):
    data = train_data if split == "train" else val_data
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x, y


class Batches:
    def __iter__(self):
        while True:
            yield get_batch("train")


class GPT(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(block_size, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(block_size, device=x.device)
        hidden = self.tokens(x) + self.positions(torch.arange(block_size, device=x.device))
        logits = self.head(self.layers(hidden, mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), y.flatten())


def estimate_loss():
    losses = {}
    for split in ("train", "val"):
        with team.evaluate(model, [get_batch(split) for _ in range(eval_iters)]) as evaluation:
            for x, y in evaluation.shards:
                evaluation.add(loss=model(x, y))
        losses[split] = evaluation["loss"]
    return losses


def get_lr(it):
    return 0.003 * min((it + 1) / warmup_iters, 0.55 + 0.45 * math.cos(math.pi * it / max_iters))


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
model, optimizer, loader = team.prepare(model, optimizer, Batches())
for batch in loader:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(team.step)
    if team.step % eval_interval == 0:
        losses = estimate_loss()
        team.print(f"step {team.step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        team.best(losses["val"], "min")
    for x, y in batch.shards:
        team.backward(model(x, y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if team.step > max_iters:
        break
