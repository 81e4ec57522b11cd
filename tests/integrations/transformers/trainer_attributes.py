"""What a Trainer's subclass does to its attributes while a shard is computed."""

import collections
import contextlib
import random

import numpy as np
import torch
from codes import refusal_of
from trainer_features import USUAL, classifier, rows
from transformers.utils import logging

from lockstep.integrations.transformers import Trainer, TrainingArguments


class Own(Trainer):
    """Changes itself within ``compute_loss``."""

    of_class = 0
    change = None
    in_evaluation = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training != self.in_evaluation:
            self.change(inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def count(self, labels):
        self.of_class += len(labels)

    def assign(self, labels):
        self.value = labels.float().mean()

    def cache(self, labels):
        if self.value is None:
            self.value = torch.ones(2)
        if not hasattr(self, "weights"):
            self.weights = [1.0, 2.0]


class Collects(Own):
    def collect(self):
        value, self.value = self.value, 0
        return value

    def take(self, collected):
        self.total = sum(collected)


def changes(act):
    return lambda self, labels: act(self.value, labels)


def add(value, labels):
    value += len(labels)


KINDS = {
    "a number": (0, lambda self, labels: setattr(self, "value", self.value + len(labels))),
    "a flag": (False, lambda self, labels: setattr(self, "value", True)),
    "a text": ("", lambda self, labels: setattr(self, "value", self.value + "x")),
    "a number of NumPy": (np.float64(0), lambda self, labels: setattr(self, "value", self.value + 1)),
    "a number of the class": (None, Own.count),
    "a tensor": (torch.zeros(2), changes(add)),
    "another tensor": (torch.zeros(2), lambda self, labels: setattr(self, "value", self.value + 1)),
    "an array": (np.zeros(2), changes(add)),
    "items of a list": ([], changes(lambda value, labels: value.append(len(labels)))),
    "an item of a list": ([0, 1], changes(lambda value, labels: value.__setitem__(0, value[0] + 1))),
    "a long list": ([0] * 300, changes(lambda value, labels: value.append(len(labels)))),
    "a tuple": ((0,), lambda self, labels: setattr(self, "value", (*self.value, 1))),
    "a set": ({-1}, changes(lambda value, labels: value.add(len(value)))),
    "a counter": (collections.Counter(), changes(lambda value, labels: value.update(labels.tolist()))),
    "a list in a dict": (collections.defaultdict(list), changes(lambda value, labels: value["a"].append(1))),
    "a deque that is full": (collections.deque([0], maxlen=1), changes(lambda value, labels: value.append(len(labels)))),
    "a tensor in a dict": ({"a": torch.zeros(2)}, changes(lambda value, labels: add(value["a"], labels))),
    "a generator of torch": (torch.Generator(), changes(lambda value, labels: torch.rand(1, generator=value))),
    "a generator of NumPy": (np.random.default_rng(1), changes(lambda value, labels: value.random())),
    "a generator of Python": (random.Random(1), changes(lambda value, labels: value.random())),
    "the value of each shard": (None, Own.assign),
}
"""Each with an attribute's first value, and what changes it: these depend on the other shards."""
KEPT = {
    "a cache": (None, Own.cache),
    "the same again": (1.0, lambda self, labels: setattr(self, "value", 1.0)),
    "not a number twice": (float("nan"), lambda self, labels: setattr(self, "value", float("nan"))),
    "an attribute of Trainer": (None, lambda self, labels: setattr(self, "label_names", [*self.label_names])),
}
"""These do not."""


def trained(out, kind, value, change, **more):
    args = TrainingArguments(str(out), **{**USUAL, "max_steps": 1, "shards": 4, **more})
    trainer = kind(classifier(), args, train_dataset=rows(20), eval_dataset=rows(12))
    trainer.value, trainer.change = value, change.__get__(trainer)
    trainer.in_evaluation = "eval_strategy" in more
    try:
        trainer.train()
    finally:
        with contextlib.suppress(Exception):
            trainer.team.close()
    return trainer


def refusals(out):
    """The codes of the errors for each kind of change in a training, and in an evaluation."""
    logging.set_verbosity_error()
    found = {}
    for kinds in (KINDS, KEPT):
        for name, (value, change) in kinds.items():
            # All but this one are noticed in the first shard.
            shards = 4 if change is Own.assign else 1
            refusal = refusal_of(lambda value=value, change=change, n=shards: trained(out, Own, value, change, shards=n))
            found[name] = refusal and refusal[1]
    value, change = KINDS["a number"]
    refusal = refusal_of(lambda: trained(out, Own, value, change, eval_strategy="epoch"))
    return found, refusal and refusal[1]


def collected(out):
    """What ``take`` has received where ``collect`` clears the attribute."""
    logging.set_verbosity_error()
    return trained(out, Collects, *KINDS["a number"]).total
