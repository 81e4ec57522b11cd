"""The right results, computed once, in one process, without any library of distributed training."""

from __future__ import annotations

import random
import sys
from collections import Counter

import torch
from _crew import WORKERS


def gradient_of_sentences() -> list[float]:
    """Of the mean over all 121 labels."""
    sys.path.insert(0, str(WORKERS / "samples"))
    import task

    model, data = task.make_model("sentences"), task.Sentences()
    samples = [data[number] for number in range(len(data))]
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    task.make_loss(model, batch).backward()
    return [value for parameter in model.parameters() for value in parameter.grad.flatten().tolist()]


def roc_auc(uses: Counter[int]) -> float:
    """Of samples that count so often, with a score and a label by their number."""
    draws = random.Random(0)
    scores = [draws.random() for _ in range(max(uses) + 1)]
    positive = [draws.random() < score for score in scores]
    pairs = wins = 0
    for one, times in uses.items():
        for other, other_times in uses.items():
            if positive[one] and not positive[other]:
                pairs += times * other_times
                wins += times * other_times * (scores[one] > scores[other])
    return wins / pairs
