"""LoRA by TRL's SFTTrainer: sft.py DATA OUTPUT."""

import sys
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, set_seed

from lockstep.integrations.trl import SFTConfig, SFTTrainer

data, output = Path(sys.argv[1]), sys.argv[2]
args = SFTConfig(
    output,
    shards=4,
    per_device_train_batch_size=2,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
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
texts = Dataset.from_dict({"text": lines})
tokenizer = AutoTokenizer.from_pretrained(data / "tiny")
tokenizer.eos_token = "<pad>"
trainer = SFTTrainer(
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(data / "tiny")),
    args,
    train_dataset=texts.select(range(100)),
    eval_dataset=texts.select(range(100, 121)),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True),
)
result = trainer.train()
trainer.save_model()
trainer.save_state()
