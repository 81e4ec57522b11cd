"""Train or fine-tune a causal language model on a text file, as scripts of the language-modeling examples do."""

import logging
import math
import sys
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, default_data_collator, set_seed
from transformers import Trainer, TrainingArguments

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Weights to start from."})
    config_name: str | None = field(default=None, metadata={"help": "Configuration of a model that starts from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "The tokenizer, if it is not the model's."})


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "Text to train on."})
    validation_file: str = field(metadata={"help": "Text whose perplexity is measured."})
    block_size: int = field(default=32, metadata={"help": "Tokens in one sample."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on so many samples at most."})


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO if training_args.should_log else logging.WARNING, stream=sys.stdout)
    logger.info("Training parameters: %s", training_args)
    set_seed(training_args.seed)

    raw = load_dataset("text", data_files={"train": data_args.train_file, "validation": data_args.validation_file})
    tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer_name or model_args.model_name_or_path)
    if model_args.model_name_or_path:
        model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_args.config_name))
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))

    def tokenize(lines):
        return tokenizer(lines["text"])

    def group_texts(rows):
        """Blocks of equal length, of all texts one after another; what is left at the end is dropped."""
        joined = {name: list(chain(*rows[name])) for name in rows}
        length = len(joined["input_ids"]) // data_args.block_size * data_args.block_size
        starts = range(0, length, data_args.block_size)
        blocks = {name: [ids[at : at + data_args.block_size] for at in starts] for name, ids in joined.items()}
        return {**blocks, "labels": blocks["input_ids"].copy()}

    with training_args.main_process_first(desc="dataset map tokenization"):
        tokenized = raw.map(tokenize, batched=True, remove_columns=["text"])
    with training_args.main_process_first(desc="grouping texts together"):
        blocks = tokenized.map(group_texts, batched=True)
    train_dataset, eval_dataset = blocks["train"], blocks["validation"]
    if data_args.max_eval_samples is not None:
        eval_dataset = eval_dataset.select(range(min(len(eval_dataset), data_args.max_eval_samples)))

    def preprocess_logits_for_metrics(logits, labels):
        return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)

    def compute_metrics(predicted):
        right = predicted.predictions[:, :-1] == predicted.label_ids[:, 1:]
        return {"accuracy": float(np.mean(right))}

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset if training_args.do_train else None,
        eval_dataset=eval_dataset if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess_logits_for_metrics,
    )
    if training_args.do_train:
        result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
        trainer.save_model()
        metrics = {**result.metrics, "train_samples": len(train_dataset)}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics |= {"eval_samples": len(eval_dataset), "perplexity": math.exp(metrics["eval_loss"])}
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    trainer.create_model_card(tasks="text-generation")


if __name__ == "__main__":
    main()
