"""A very small language model."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class GPTConfig:
    vocab_size: int = 16
    block_size: int = 8
    n_embd: int = 8
    lr: float = 1e-2


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.block = nn.TransformerEncoderLayer(config.n_embd, 2, 16, dropout=0.0, batch_first=True)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets):
        length = idx.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.block(self.wte(idx) + self.wpe(torch.arange(length)), src_mask=mask, is_causal=True)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())
