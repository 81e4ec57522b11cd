"""A causal language model of Hugging Face, fine-tuned."""

import textwrap
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, get_linear_schedule_with_warmup

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
tokens = torch.tensor(list(Path(textwrap.__file__).read_bytes()))  # or a tokenizer's
blocks = [{"input_ids": block, "labels": block} for block in tokens.unfold(0, 128, 128)]
loader = DataLoader(blocks[27:], batch_size=16, shuffle=True)
test_loader = DataLoader(blocks[:27], batch_size=9)
sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
# or: AutoModelForCausalLM.from_pretrained(name)
model = AutoModelForCausalLM.from_config(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 3 * len(loader))
for epoch in range(3):
    model.train()
    for batch in loader:
        batch = {name: value.to(device) for name, value in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    losses = []
    with torch.no_grad():
        for batch in test_loader:
            batch = {name: value.to(device) for name, value in batch.items()}
            loss = model(**batch).loss
            losses.append(loss.repeat(len(batch["labels"])))
    print(f"epoch {epoch + 1}: loss {torch.cat(losses).mean():.4f}")
model.save_pretrained("fine-tuned")
