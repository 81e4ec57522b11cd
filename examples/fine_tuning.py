"""A Hugging Face model that learns from which module of Python's library a line of code is.

python examples/fine_tuning.py                             one process
lockstep run --nproc-per-node 2 examples/fine_tuning.py    two processes

The weights are random, so nothing is downloaded. For pretrained weights see ``make_model``.
"""

import argparse
import inspect
import statistics
import zipfile
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, BertConfig

import lockstep

MODULES = (argparse, statistics, zipfile)
LENGTH = 48
PAD = 0  # not a character of any text


def make_data():
    """Returns each line of code once, as character codes, with the number of its module.

    Every seventh line is for the test.
    """
    texts = [Path(inspect.getsourcefile(module)).read_text(encoding="utf-8") for module in MODULES]
    of_module = {line.strip(): number for number, text in enumerate(texts) for line in text.splitlines()}
    samples = [(line[:LENGTH], number) for line, number in of_module.items() if len(line) >= 8 and line.isascii()]
    return [sample for i, sample in enumerate(samples) if i % 7], samples[::7]


def collate(samples):
    """Returns a batch in the form of transformers. (You would call a tokenizer here.)"""
    lines, labels = zip(*samples, strict=True)
    tokens = pad_sequence([torch.tensor(list(line.encode())) for line in lines], batch_first=True, padding_value=PAD)
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "labels": torch.tensor(labels)}


def make_model(team):
    """Returns a small classifier.

    For weights from the hub: ``AutoModelForSequenceClassification.from_pretrained(name,
    num_labels=3)``.
    """
    with team.main_first():  # one process downloads, before the others look
        sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
        config = BertConfig(vocab_size=128, max_position_embeddings=LENGTH, num_labels=len(MODULES), **sizes)
        return AutoModelForSequenceClassification.from_config(config)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="lines in a step, over all processes")
    parser.add_argument("--lr", type=float, default=0.001)
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    data, test_data = make_data()
    loader = DataLoader(data, args.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test_data, args.batch_size, collate_fn=collate)
    model = make_model(team)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for part in batch.shards:  # a dict
                loss = model(**part).loss
                team.backward(loss)
                batch.add(loss=loss)
            team.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, test_loader) as evaluation:
            for batch in evaluation:
                for part in batch.shards:
                    found = model(**part)
                    batch.add(loss=found.loss, accuracy=found.logits.argmax(1) == part["labels"])
        team.print(f"epoch {epoch + 1}: test loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.2%}")

    if team.is_main:
        team.unwrap(model).save_pretrained(team.run_dir / "fine-tuned")


if __name__ == "__main__":
    main()
