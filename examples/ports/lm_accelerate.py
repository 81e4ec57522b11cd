"""A causal language model of Hugging Face, fine-tuned."""

import textwrap
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, get_linear_schedule_with_warmup

torch.manual_seed(0)
accelerator = Accelerator()
tokens = torch.tensor(list(Path(textwrap.__file__).read_bytes()))  # or a tokenizer's
blocks = [{"input_ids": block, "labels": block} for block in tokens.unfold(0, 128, 128)]
loader = DataLoader(blocks[27:], batch_size=16, shuffle=True)
test_loader = DataLoader(blocks[:27], batch_size=9)
sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
model = AutoModelForCausalLM.from_config(config)  # or: AutoModelForCausalLM.from_pretrained(name)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 3 * len(loader))
model, optimizer, schedule, loader, test_loader = accelerator.prepare(model, optimizer, schedule, loader, test_loader)
checkpoints = sorted(Path().glob("epoch_*"))  # resume
if checkpoints:  # resume
    accelerator.load_state(checkpoints[-1])  # resume
for epoch in range(len(checkpoints), 3):  # resume
    model.train()
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()
    losses = []
    with torch.no_grad():
        for batch in test_loader:
            loss = model(**batch).loss
            losses.append(accelerator.gather_for_metrics(loss.repeat(len(batch["labels"]))))
    accelerator.print(f"epoch {epoch + 1}: loss {torch.cat(losses).mean():.4f}")
    accelerator.save_state(f"epoch_{epoch}")  # resume
accelerator.unwrap_model(model).save_pretrained("fine-tuned", is_main_process=accelerator.is_main_process)
