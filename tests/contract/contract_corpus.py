"""The toy trainings on which the contract is checked: every feature of a loop, and pairs of those
that meet in one place.

Each has a number of steps, and is trained with 4 shards unless ``settings`` say otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import features
import whole_steps


@dataclass(frozen=True)
class Training:
    """One of them.

    Args:
        task: a rank's script.
        num_steps: it takes at least so many.
        settings: of the run.
        resumes: False: it keeps things of its own from step to step that it registers nowhere.
    """

    task: Callable
    num_steps: int = 6
    settings: dict = field(default_factory=dict)
    resumes: bool = True


SETTINGS = ("accumulate", "precision", "shards", "threads", "workers")


def trained(num_steps=6, *, resumes=True, **options):
    """``features.train`` with these options, and with those among them that are settings of the
    run."""
    settings = {name: options.pop(name) for name in SETTINGS if name in options}
    return Training(partial(features.train, **options), num_steps, settings, resumes)


def short(**options):
    """Steps that are smaller than the shards, some with a sample for one process only."""
    return trained(**{"num_steps": 9, "model": "SometimesUnused", "length": 17, "batch_size": 8, "epochs": 3, **options})


def special(task, *args, num_steps=6, resumes=True, **settings):
    return Training(partial(task, *args), num_steps, settings, resumes)


CORPUS = {
    # The options of one loop: each value, and the pairs that share code.
    "plain": trained(optimizer="SGD", schedule="lambda"),
    "two threads": trained(schedule="one cycle", threads=2),
    "zeroed gradients": trained(set_to_none=False, optimizer="SGD, foreach", schedule="sequential"),
    "stream by tokens": trained(loader="stream", weight="tokens", optimizer="Adam, foreach"),
    "stream by zeros": trained(loader="stream", weight="zeros", optimizer="SGD, fused"),
    "ready by tokens": trained(loader="ready", weight="tokens", optimizer="AdamW, fused"),
    "samples by zeros": trained(weight="zeros", schedule="lambda"),
    "eight shards": trained(model="Plain", batch_size=20, shards=8, optimizer="Adam, fused"),
    "many dtypes": trained(model="Mixed", weight="tokens", optimizer="SGD, foreach"),
    "late buffers": trained(model="LateBuffer"),
    "tied weights": trained(model="Tied"),
    "channels last": trained(model="ChannelsLast", optimizer="SGD"),
    "batch statistics by hand": trained(model="HandNorm", optimizer="SGD"),
    "a code book": trained(model="CodeBook", optimizer="SGD"),
    "an optimizer's attributes": trained(model="Plain", optimizer="in attributes"),
    "options that steps fill": trained(model="Plain", optimizer="in options"),
    "gradients never cleared": trained(model="Plain", optimizer="SGD", set_to_none=None, resumes=False),
    "checkpointed blocks": trained(model="not reentrant"),
    "reentrant blocks": trained(model="reentrant"),
    "unused parameters": trained(model="SometimesUnused", batch_size=8, epochs=3, num_steps=18),
    "accumulation": trained(model="Deep", length=62, batch_size=8, accumulate=3, shards=3),
    "accumulation of a stream": trained(model="Plain", loader="stream", length=62, batch_size=8, accumulate=2, num_steps=8),
    "accumulation of ready batches": trained(model="Deep", loader="ready", length=62, batch_size=8, accumulate=2, shards=3),
    "accumulation with weights": trained(
        model="reentrant", weight="tokens", length=59, batch_size=16, accumulate=3, num_steps=4
    ),
    "16-mixed": trained(precision="16-mixed", model="reentrant"),
    "16-master": trained(precision="16-master", model="Deep"),
    "16-true": trained(precision="16-true", model="reentrant", optimizer="SGD, foreach"),
    "bf16-mixed": trained(precision="bf16-mixed", model="Net"),
    "bf16-true": trained(precision="bf16-true", model="Deep"),
    "16-mixed, short": short(precision="16-mixed", weight="tokens"),
    "bfloat16": trained(model="bfloat16", optimizer="AdamW, fused", weight="tokens"),
    # Several models, optimizers, losses and phases.
    "averages": special(features.train_averages),
    "two optimizers": special(features.train_two_optimizers),
    "frozen": special(features.train_frozen, num_steps=12),
    "frozen at first": special(features.train_frozen, "Plain", 43, (1, 2, 3)),
    **{
        f"two losses {how}": special(features.train_two_losses, how)
        for how in (
            *("by weights", "with a forward pass between them", "in phases"),
            *("through a shared layer", "with one model frozen"),
        )
    },
    "a GAN": special(whole_steps.train_gan, num_steps=10),
    "sharpness": special(whole_steps.train_sharp),
    **{f"closures of {kind}": special(whole_steps.train_with_closures, kind, num_steps=10) for kind in whole_steps.CLOSURES},
    "states of shards": special(whole_steps.train_in_words, num_steps=10),
    "random numbers": special(whole_steps.draw_everywhere, num_steps=10),
    "hosted": special(features.train_hosted),
    "hosted, accumulated": special(features.train_hosted, shards=3, accumulate=2),
    "two loaders": special(features.train_two_loaders, num_steps=12, shards=3),
    "two loaders, accumulated": special(features.train_two_loaders, num_steps=6, shards=3, accumulate=2),
    "samplers that go on": special(features.train_with_samplers, num_steps=12),
    # What runs beside the step.
    **{
        f"looked at {how}": special(features.train_and_look, how)
        for how in (
            "after the backward pass",
            "after the update, with gradients",
            "after the update, over the shards",
            "evaluation",
            "by rank 0 alone at the end",
        )
    },
    **{name: special(whole_steps.train_idiom, name, num_steps=9) for name in whole_steps.IDIOMS},
    "scaled by the script": special(features.train_scaled, "script", "AdamW, foreach", num_steps=9),
    "scaled by the run": special(features.train_scaled, "run", "AdamW, foreach", num_steps=9, resumes=False),
    "scaled and accumulated, not clipped": special(features.train_scaled, "run", "SGD, foreach", 2, False, resumes=False),
    "left loops": special(features.leave_the_loop, "16-mixed", num_steps=4),
}

# What ``fsdp`` trains as well: without empty shards, on numbers of processes that divide those of
# shards.
SHARDED = {
    **{name: CORPUS[name] for name in (*("stream by tokens", "16-mixed", "two losses by weights"),)},
    "unused parameters": trained(model="SometimesUnused", batch_size=8, length=40, epochs=3, num_steps=15),
    "accumulation with weights": trained(
        model="not reentrant", weight="tokens", length=64, batch_size=16, accumulate=2, num_steps=4
    ),
    "scaled by the script": CORPUS["scaled by the script"],
    "hosted": CORPUS["hosted"],
    "compiled": trained(model="compiled, aot_eager", length=32, epochs=1, num_steps=2),
    "normed weights, chosen": trained(model="Normed", length=32, epochs=1, num_steps=2),
}

# What strategies that add up in an order of their own train as well, to the same up to rounding.
ROUNDED = {
    **{
        name: CORPUS[name]
        for name in (
            *("plain", "stream by tokens", "many dtypes", "tied weights", "channels last", "a code book", "averages"),
            *("frozen at first", "a GAN", "two losses by weights", "two losses in phases"),
            *("two losses through a shared layer", "two losses with one model frozen"),
            *("looked at after the update, with gradients", "looked at evaluation"),
        )
    },
    "checkpointed blocks": trained(model="not reentrant", optimizer="SGD, foreach"),
    "unused parameters": trained(model="SometimesUnused", optimizer="SGD", batch_size=8, length=64),
    "one sample": trained(model="Plain", optimizer="SGD", length=1),
    **{
        precision: trained(optimizer="SGD, foreach", precision=precision)
        for precision in ("16-mixed", "16-master", "16-true", "bf16-mixed")
    },
}
