"""The shape of nanoGPT."""

import math
import textwrap
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional

batch_size, block_size, accumulation = 8, 32, 2
max_iters, warmup_iters, eval_interval, eval_iters = 20, 5, 10, 4

accelerator = Accelerator()
set_seed(1337, device_specific=True)
device = accelerator.device
data = torch.tensor(list(Path(textwrap.__file__).read_bytes()))
train_data, val_data = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def get_batch(split):
    data = train_data if split == "train" else val_data
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in starts])
    return x.to(device), y.to(device)


class State(dict):  # resume
    state_dict = dict.copy  # resume
    load_state_dict = dict.update  # resume


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


@torch.no_grad()
def estimate_loss():
    losses = {}
    model.eval()
    for split in ("train", "val"):
        loss = sum(model(*get_batch(split)) for _ in range(eval_iters)) / eval_iters
        losses[split] = accelerator.reduce(loss, "mean")
    model.train()
    return losses


def get_lr(it):
    return 0.003 * min((it + 1) / warmup_iters, 0.55 + 0.45 * math.cos(math.pi * it / max_iters))


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
model, optimizer = accelerator.prepare(model, optimizer)
state = State(iter_num=0, best_val_loss=math.inf)  # resume
accelerator.register_for_checkpointing(state)  # resume
if Path("checkpoint").exists():  # resume
    accelerator.load_state("checkpoint")  # resume
iter_num, best_val_loss = state.values()  # resume
x, y = get_batch("train")
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        accelerator.print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            accelerator.save(accelerator.unwrap_model(model).state_dict(), "ckpt.pt")
        state.update(iter_num=iter_num, best_val_loss=best_val_loss)  # resume
        accelerator.save_state("checkpoint")  # resume
    for _ in range(accumulation):
        loss = model(x, y) / accumulation
        x, y = get_batch("train")
        accelerator.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    iter_num += 1
    if iter_num > max_iters:
        break
