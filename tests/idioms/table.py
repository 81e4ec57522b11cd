"""All idioms, by topic, and the pitfalls that they show: ``pitfalls.py`` makes docs/pitfalls.md and
docs/idioms.md of it."""

from dataclasses import dataclass
from importlib import import_module

from topics.promises import IDIOMS

# In the order in which the page shows them.
NAMES = (
    "optimizers",
    "gradients",
    "losses",
    "averages",
    "models",
    "weights",
    "networks",
    "data",
    "loaders",
    "schedules",
    "control_flow",
    "evaluation",
    "logs",
    "misuse",
)
TOPICS = {name: import_module(f"topics.{name}") for name in NAMES}
TABLE = {name: [idiom for idiom in IDIOMS if idiom.topic == name] for name in NAMES}
ROWS = [idiom for idioms in TABLE.values() for idiom in idioms]


@dataclass(frozen=True)
class Pitfall:
    """What people write first and should not, with scripts that show it."""

    written: str
    why: str
    instead: str
    names: tuple[str, ...]


# The ten that matter, the most frequent first.
PITFALLS = [
    Pitfall(
        "`correct += ...` or `losses.append(...)` inside, read outside",
        "counts only the shards of this process",
        '`batch.add(correct=...)` inside, `batch["correct"]` outside',
        ("sum_by_hand", "queue_filled_inside"),
    ),
    Pitfall(
        "`loss` of the inner loop, used outside: `scheduler.step(loss)`, `if loss < ...`",
        "is the loss of this process's last shard",
        '`batch.add(loss=loss)` inside, `batch["loss"]` outside',
        ("last_loss_decides",),
    ),
    Pitfall(
        "`best`, `bad` or a running average in plain variables",
        "are in no checkpoint, so they start over in a resumed run",
        "`state = team.state(best=0.0, bad=0)`, then `state.best`",
        ("early_stopping_by_metric",),
    ),
    Pitfall(
        "`for step, batch in enumerate(loader)`",
        "restarts at 0 when the run resumes in mid-epoch",
        "`team.step`",
        ("enumerate_and_break",),
    ),
    Pitfall(
        "`lr * world_size`, `batch_size // world_size`",
        "make results depend on the number of processes: `batch_size` is that of the global batch",
        "the numbers of the script for one GPU",
        ("rank_in_the_answer",),
    ),
    Pitfall(
        "`optimizer.step()`, `zero_grad()`, clipping or `scheduler.step()` inside",
        "the gradient there contains only some shards",
        "the same lines after the loop over `batch.shards`",
        ("step_inside", "zero_inside", "clip_inside", "schedule_inside"),
    ),
    Pitfall(
        "a loss summed over samples (a mean over tokens runs, with wrong weights)",
        "shards are weighted by their numbers of samples",
        '`team.backward(loss, reduction="sum")`, `weight=num_tokens`, or [two phases](how-to/contrastive.md)',
        ("summed_loss_not_said",),
    ),
    Pitfall(
        "a teacher in training mode, or a loss with buffers, not given to `team.prepare`",
        "its statistics follow the shards of this process",
        "prepare it, or `.eval()`",
        ("teacher_with_batch_norm_not_prepared", "loss_with_a_buffer"),
    ),
    Pitfall(
        "a generator of your own drawn inside; a dataset that caches what it drew",
        "what a sample gets depends on the samples before it on this process",
        "the global generators of torch, numpy and random; or a generator made from the index",
        ("own_generator_inside", "cached_augmentation"),
    ),
    Pitfall(
        "data split or seeded by rank: `DistributedSampler`, `stream[rank::world_size]`, `random_split` before `join()`",
        "lockstep splits each batch itself, so samples would be lost or used twice",
        "the complete dataset on every process, created after `join()` or with a fixed seed",
        ("distributed_sampler", "stream_split_by_rank", "split_before_join"),
    ),
]
