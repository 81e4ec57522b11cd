"""A causal language model of Hugging Face, fine-tuned."""

import textwrap
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, GPT2Config, get_linear_schedule_with_warmup

import lockstep

torch.manual_seed(0)
team = lockstep.join(shards=8)
tokens = torch.tensor(list(Path(textwrap.__file__).read_bytes()))  # or a tokenizer's
blocks = [{"input_ids": block, "labels": block} for block in tokens.unfold(0, 128, 128)]
loader = DataLoader(blocks[27:], batch_size=16, shuffle=True)
test_loader = DataLoader(blocks[:27], batch_size=9)
sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": 32, "n_layer": 2, "n_head": 2}
config = GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
model = AutoModelForCausalLM.from_config(config)  # or: AutoModelForCausalLM.from_pretrained(name)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 3 * len(loader))
model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
for epoch in team.epochs(3):
    for batch in loader:
        for inputs in batch.shards:
            loss = model(**inputs).loss
            team.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with team.evaluate(model, test_loader) as evaluation:
        for inputs in evaluation.shards:
            evaluation.add(loss=model(**inputs).loss)
    team.print(f"epoch {epoch + 1}: loss {evaluation['loss']:.4f}")
team.unwrap(model).save_pretrained("fine-tuned", is_main_process=team.is_main)
