"""One contender of ``trainer.py``: transformers' Trainer, plain or on lockstep.

    python benchmarks/workers/trained.py CONTENDER --size SIZE --shards V --batch N --steps N --dir
    DIR

Both train the same model on global batches of ``batch`` sequences, in V parts: lockstep's shards,
which are divided among the processes, or plain Trainer's processes, each of which accumulates the
gradients of its parts.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback
from turns import Pauses

SIZES = {"0.5M": {"n_embd": 64, "n_layer": 4}, "5M": {"n_embd": 256, "n_layer": 6}}
TOKENS, VOCABULARY = 64, 1000
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Blocks(Dataset[dict[str, list[int]]]):
    """Random tokens, as lists, which is what tokenizers give."""

    def __init__(self, number: int) -> None:
        self._blocks = torch.randint(0, VOCABULARY, (number, TOKENS)).tolist()

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self._blocks[index], "labels": self._blocks[index]}


class TakeTurns(TrainerCallback):
    """A turn is so many steps."""

    def __init__(self, steps: int) -> None:
        self._steps, self._pauses = steps, Pauses()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step % self._steps == 0:
            control.should_training_stop = not self._pauses.pause()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=("plain", "lockstep"))
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--shards", type=int, required=True, help="parts of a global batch")
    parser.add_argument("--batch", type=int, required=True, help="sequences in a global batch")
    parser.add_argument("--steps", type=int, required=True, help="steps of a turn")
    parser.add_argument("--dir", required=True, help="where files go")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.set_seed(0)
    settings: dict[str, Any] = {"gradient_accumulation_steps": args.shards // WORLD_SIZE}
    host: Any = transformers
    if args.contender == "lockstep":
        from lockstep.integrations import transformers as host

        settings = {"shards": args.shards, "lockstep": {"run_dir": f"{args.dir}/run"}}
    arguments = host.TrainingArguments(
        args.dir,
        use_cpu=True,
        per_device_train_batch_size=args.batch // args.shards,
        max_steps=1_000_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_head=4, bos_token_id=0, eos_token_id=0, **SIZES[args.size]
    )
    trainer = host.Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Blocks(64 * args.batch),
        data_collator=transformers.default_data_collator,
        callbacks=[TakeTurns(args.steps)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
