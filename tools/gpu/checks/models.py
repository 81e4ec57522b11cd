"""The models that checks train, and their samples: a CNN with BatchNorm and dropout, and a GPT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and batches for it, which are the same on every machine."""

    model: nn.Module
    batches: list[Batch]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch[0]).float()
        return functional.cross_entropy(logits.flatten(0, -2), batch[1].flatten())


class Attention(nn.Module):
    """Causal self-attention, by the kernel that PyTorch chooses for the device."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads), nn.Dropout(dropout))
        above = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)]
        self.above = nn.Sequential(nn.LayerNorm(width), *above)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        result: Tensor = x + self.above(x)
        return result


class GPT(nn.Module):
    def __init__(self, *, vocabulary: int, length: int, width: int, depth: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.norm(self.blocks(hidden)) @ self.tokens.weight.T
        return logits


def cnn(num_batches: int, *, tiny: bool, dropout: float = 0.2) -> Task:
    """Images, classes, and convolutions that keep them apart."""
    batch, size, width, depth = (8, 8, 4, 1) if tiny else (64, 64, 64, 6)
    generator = torch.Generator().manual_seed(3)
    batches = [
        (torch.randn(batch, 3, size, size, generator=generator), torch.randint(0, 10, (batch,), generator=generator))
        for _ in range(num_batches)
    ]
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for _ in range(depth):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False)]
    layers += [nn.MaxPool2d(4), nn.Flatten(), nn.Dropout(dropout), nn.Linear(width * (size // 4) ** 2, 10)]
    return Task(model=nn.Sequential(*layers), batches=batches)


def gpt(num_batches: int, *, tiny: bool, dropout: float = 0.1) -> Task:
    """Returns tokens, and the tokens that follow them."""
    batch, length, vocabulary, width, depth = (4, 8, 32, 16, 1) if tiny else (16, 512, 4096, 512, 6)
    generator = torch.Generator().manual_seed(4)
    texts = [torch.randint(0, vocabulary, (batch, length + 1), generator=generator) for _ in range(num_batches)]
    torch.manual_seed(0)
    heads = 2 if tiny else 8
    model = GPT(vocabulary=vocabulary, length=length, width=width, depth=depth, heads=heads, dropout=dropout)
    return Task(model=model, batches=[(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts])


def large_gpt(num_batches: int, num_samples: int, *, tiny: bool) -> Task:
    """A GPT of 156 million parameters, whose exchange takes a while, and short batches for it."""
    length, vocabulary, width, depth = (8, 32, 16, 1) if tiny else (512, 4096, 1024, 12)
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(0, vocabulary, (num_samples, length + 1), generator=generator) for _ in range(num_batches)]
    torch.manual_seed(0)
    heads = 2 if tiny else 16
    model = GPT(vocabulary=vocabulary, length=length, width=width, depth=depth, heads=heads, dropout=0.0)
    return Task(model=model, batches=[(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts])


TASKS = {"cnn": cnn, "gpt": gpt}
