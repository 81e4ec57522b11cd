"""Preferences by TRL's DPOTrainer, against a reference model: dpo.py DATA OUTPUT."""

import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

from lockstep.integrations.trl import DPOConfig, DPOTrainer

data, output = Path(sys.argv[1]), sys.argv[2]
args = DPOConfig(
    output,
    shards=4,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=4,
    num_train_epochs=1,
    learning_rate=5e-3,
    logging_steps=3,
    eval_strategy="epoch",
    save_strategy="no",
    max_length=32,
    bf16=False,
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
set_seed(3)
lines = [line for line in (data / "train.txt").read_text().splitlines() if line.strip()]
pairs = Dataset.from_list(
    [{"prompt": a, "chosen": b, "rejected": c} for a, b, c in zip(lines[0::3], lines[1::3], lines[2::3], strict=False)]
)
tokenizer = AutoTokenizer.from_pretrained(data / "tiny")
tokenizer.eos_token = "<pad>"
model, reference = (AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(data / "tiny")) for _ in range(2))
reference.load_state_dict(model.state_dict())
trainer = DPOTrainer(
    model,
    ref_model=reference,
    args=args,
    train_dataset=pairs.select(range(45)),
    eval_dataset=pairs.select(range(45, 54)),
    processing_class=tokenizer,
)
result = trainer.train()
trainer.save_model()
trainer.save_state()
