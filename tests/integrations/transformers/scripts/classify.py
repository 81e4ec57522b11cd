"""Fine-tune a classifier of sentences, stop early and keep the best weights, as scripts of text classification do."""

import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import load_dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed
from transformers import EarlyStoppingCallback, HfArgumentParser
from transformers import Trainer, TrainingArguments

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    config_name: str = field(metadata={"help": "Configuration and tokenizer."})


@dataclass
class DataArguments:
    train_file: str = field(metadata={"help": "Lines of JSON: sentence and label."})
    validation_file: str = field(metadata={"help": "More of them, to choose the best weights by."})
    test_file: str = field(metadata={"help": "More of them, to label."})
    max_seq_length: int = field(default=48, metadata={"help": "Longer sentences are cut off."})
    patience: int = field(default=2, metadata={"help": "Stop after so many evaluations that are not better."})


def compute_metrics(predicted):
    logits = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    found, labels = np.argmax(logits, axis=1), predicted.label_ids
    right = np.sum((found == 1) & (labels == 1))
    return {"accuracy": float(np.mean(found == labels)), "f1": float(2 * right / max(1, np.sum(found) + np.sum(labels)))}


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO if training_args.should_log else logging.WARNING, stream=sys.stdout)
    set_seed(training_args.seed)

    files = {"train": data_args.train_file, "validation": data_args.validation_file, "test": data_args.test_file}
    raw = load_dataset("json", data_files=files)
    labels = sorted(set(raw["train"]["label"]))
    config = AutoConfig.from_pretrained(model_args.config_name, num_labels=len(labels))
    tokenizer = AutoTokenizer.from_pretrained(model_args.config_name)
    model = AutoModelForSequenceClassification.from_config(config)

    def preprocess(rows):
        return tokenizer(rows["sentence"], max_length=data_args.max_seq_length, truncation=True)

    with training_args.main_process_first(desc="dataset map pre-processing"):
        data = raw.map(preprocess, batched=True)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[EarlyStoppingCallback(data_args.patience)],
    )
    result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    found = trainer.predict(data["test"].remove_columns("label"), metric_key_prefix="predict").predictions
    if trainer.is_world_process_zero():
        lines = (f"{index}\t{labels[label]}\n" for index, label in enumerate(np.argmax(found, axis=1)))
        Path(training_args.output_dir, "predict_results.txt").write_text("index\tprediction\n" + "".join(lines))


if __name__ == "__main__":
    main()
