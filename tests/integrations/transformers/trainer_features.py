"""Trainings by transformers' Trainer, a feature or some each: run in every process of a crew, and
once without lockstep."""

import collections
import hashlib
import os
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import BertConfig, EarlyStoppingCallback, GPT2Config, T5Config, TrainerCallback
from transformers.trainer_callback import ExportableState

from lockstep.integrations.transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments
from lockstep.integrations.transformers._session import team as joined_team
from lockstep.integrations.transformers._state import MOST_ITEMS, is_clock

SHARDS = 4
# of a process in its run
PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TRAINED = 41  # samples: no multiple of anything
EVALUATED = 13
USUAL = {
    "use_cpu": True,
    "per_device_train_batch_size": 2,
    "per_device_eval_batch_size": 5,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "logging_steps": 2,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 7,
    "save_strategy": "no",
}


# Models and data


def texts(count, begin=0, words=30):
    """Texts of 3 to 9 words, padded by their collator."""
    generator = torch.Generator().manual_seed(1 + begin)
    lengths = torch.randint(3, 10, (count,), generator=generator).tolist()
    return [{"input_ids": torch.randint(1, words, (length,), generator=generator).tolist()} for length in lengths]


def pad(samples):
    longest = max(len(sample["input_ids"]) for sample in samples)
    ids = torch.tensor([[*sample["input_ids"], *[0] * (longest - len(sample["input_ids"]))] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def rows(count, begin=0):
    """Eight words each, and a class."""
    ids = torch.randint(1, 30, (count, 8), generator=torch.Generator().manual_seed(1 + begin))
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0] > 15)} for row in ids]


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class Noisy(Dataset):
    """Samples that are changed at random whenever they are read."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        ids = sample["input_ids"].clone()
        ids[torch.randint(0, 8, ())] = 0
        return {**sample, "input_ids": ids}


def classifier(dropout=0.1):
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return transformers.AutoModelForSequenceClassification.from_config(config)


def writer(dropout=0.1):
    config = GPT2Config(
        vocab_size=30,
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def translator():
    config = T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return transformers.AutoModelForSeq2SeqLM.from_config(config)


class Plain(nn.Module):
    """A module that transformers does not know."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 2)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.norm(self.words(input_ids).transpose(1, 2)).mean(2))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def accuracy(prediction):
    labels = torch.as_tensor(prediction.label_ids)
    right = torch.as_tensor(prediction.predictions).argmax(-1) == labels
    return {"accuracy": float(right[labels != -100].float().mean()), "count": len(labels)}


class PerWord(Plain):
    """Its logits have a row for each word, not for each sample."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.words(input_ids)).flatten(0, 1)
        return {"loss": nn.functional.cross_entropy(logits, input_ids.flatten() % 2), "logits": logits}


# What a row changes


class Doubled:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        return (loss * 2, outputs) if return_outputs else loss * 2


class Twice:
    """Two backward passes a step, as in adversarial training."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        self.accelerator.backward(loss)
        self.accelerator.backward(0.5 * self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch))
        return loss.detach()


class Softened:
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys)
        return loss, None if logits is None else logits.softmax(-1), labels


class Counting(TrainerCallback, ExportableState):
    """Counts all events, and ends the first epoch early."""

    def __init__(self):
        self.events = {}
        self.arguments = set()

    def state(self):
        return {"args": {}, "attributes": {"events": dict(self.events)}}

    def on_step_end(self, args, state, control, **_):
        control.should_epoch_stop = state.global_step == 3


class Shares:
    """Logs, of each step and evaluation batch, what was computed with the losses of all shards."""

    found = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.found = outputs.logits.argmax(-1).tolist(), inputs["labels"].tolist()
        return (loss, outputs) if return_outputs else loss

    def collect(self):
        found, self.found = self.found, None
        return found

    def take(self, collected):
        pairs = [pair for found, labels in collected for pair in zip(found, labels, strict=True)]
        self.log({"right": sum(found == label for found, label in pairs), "of": len(pairs)})


class Collecting:
    """Keeps what it has seen in containers of several kinds, and logs of it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # a name that the code of transformers uses, too
        self.metrics = collections.defaultdict(list)
        self.logged = collections.Counter()
        self.recent = collections.deque(maxlen=3)
        self.lowest = np.float64(9)
        self.long = []

    def log(self, logs, start_time=None):
        self.metrics["loss"].append(logs.get("loss", 0.0))
        self.logged.update(logs.keys())
        self.recent.append(len(self.recent))
        self.lowest = np.minimum(self.lowest, logs.get("loss", 9.0))
        self.long += [self.state.global_step] * (MOST_ITEMS // 2)
        count = self.logged["loss"] + len(self.recent) + len(self.long)
        super().log({**logs, "count": count, "sum": sum(self.metrics["loss"]), "lowest": float(self.lowest)}, start_time)


class Looking(TrainerCallback):
    """Looks at a batch of the training data now and then, as one does to log examples."""

    def look(self, args, state, control, train_dataloader=None, **_):
        assert len(next(iter(train_dataloader))["labels"]) > 0

    on_train_begin = on_epoch_end = look

    def on_evaluate(self, args, state, control, eval_dataloader=None, **_):
        assert sum(len(batch["labels"]) for batch in eval_dataloader) == EVALUATED


class Resetting(TrainerCallback):
    """A callback that counts from 0 in each launch."""

    def on_train_begin(self, args, state, control, **_):
        self.num_steps = 0

    def on_step_end(self, args, state, control, **_):
        self.num_steps += 1


def _counts(event, act=None):
    def count(self, args, state, control, **kwargs):
        self.events[event] = self.events.get(event, 0) + 1
        self.arguments.add(args.gradient_accumulation_steps)
        return None if act is None else act(self, args, state, control, **kwargs)

    return count


for _event in [name for name in dir(TrainerCallback) if name.startswith("on_") and name != "on_init_end"]:
    setattr(Counting, _event, _counts(_event, vars(Counting).get(_event)))


def running_mean(prediction, compute_result, seen=[]):  # noqa: B006 -- kept from batch to batch
    seen.append(float((torch.as_tensor(prediction.predictions).argmax(-1) == torch.as_tensor(prediction.label_ids)).sum()))
    if not compute_result:
        return {}
    total = sum(seen)
    seen.clear()
    return {"right": total}


def with_inputs(prediction):
    return {"words": int(prediction.inputs.sum()), "largest": float(prediction.losses.max()), **accuracy(prediction)}


def all_words(prediction):
    assert len(prediction.predictions) == 8 * len(prediction.label_ids) == 8 * EVALUATED
    return {"largest": float(prediction.predictions.max())}


def own_loss(outputs, labels, num_items_in_batch=None):
    total = nn.functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    return total / num_items_in_batch


def with_lora(model):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"]))


def own_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def nothing_more(model):
    return {}


@dataclass
class Feature:
    """A training. ``args`` are arguments of TrainingArguments in addition to the usual ones."""

    args: dict[str, Any] = field(default_factory=dict)
    model: Any = classifier
    data: Any = rows
    collate: Any = None
    more: Any = nothing_more  # more of Trainer's arguments, from the model
    mixin: type = object
    # what the script does with the trainer, instead of train(); its result is compared
    act: Any = None
    train_set: Any = list
    eval_set: Any = list
    metrics: Any = accuracy
    seq2seq: bool = False


def _text(**kwargs):
    return {"model": writer, "data": texts, "collate": pad, **kwargs}


def _sequential(**kwargs):
    return {"train_sampling_strategy": "sequential", **kwargs}


def _fixed(**kwargs):
    return _text(model=lambda: writer(0.0), **kwargs)


def train_twice(trainer):
    trainer.train()
    first = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    trainer.train()
    return first


def evaluate_first(trainer):
    before = trainer.evaluate()["eval_loss"]
    trainer.train(resume_from_checkpoint=True)
    return before


def predict(trainer):
    trainer.train()
    output = trainer.predict(trainer.eval_dataset, metric_key_prefix="test")
    return output.predictions.tolist(), output.label_ids.tolist(), output.metrics["test_accuracy"]


def save(trainer):
    result = trainer.train()
    trainer.save_model()
    trainer.accelerator.wait_for_everyone()  # rank 0 writes the files
    trainer.save_state()
    trainer.save_metrics("train", {"loss": result.training_loss})
    weights = transformers.AutoModelForSequenceClassification.from_pretrained(trainer.args.output_dir).state_dict()
    return all(torch.equal(value, weights[name]) for name, value in trainer.model.state_dict().items())


def count(trainer):
    trainer.train()
    (counting,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, Counting)]
    # once a launch
    events = {name: number for name, number in counting.events.items() if name != "on_train_begin"}
    return events, counting.arguments


def columns(samples):
    from datasets import Dataset as Columns

    return Columns.from_list(
        [{"input_ids": sample["input_ids"].tolist(), "labels": sample["labels"], "name": "unused"} for sample in samples]
    )


FEATURES = {
    "usual": Feature({"eval_strategy": "epoch"}),
    "tokens, accumulation, clipping, warmup": Feature(
        _sequential(
            gradient_accumulation_steps=3,
            max_grad_norm=0.3,
            lr_scheduler_type="cosine",
            warmup_steps=2,
            eval_strategy="epoch",
        ),
        **_fixed(),
    ),
    "label smoothing, no clipping": Feature(_sequential(label_smoothing_factor=0.1, max_grad_norm=0.0), **_fixed()),
    "an own loss function": Feature(_sequential(), **_fixed(more=lambda model: {"compute_loss_func": own_loss})),
    "drop_last, fractional epochs": Feature(_sequential(dataloader_drop_last=True, num_train_epochs=1.5), **_fixed()),
    "adafactor, weight decay": Feature(_sequential(optim="adafactor", weight_decay=0.1), **_fixed()),
    "max_steps": Feature({"max_steps": 8, "logging_first_step": True}),
    "random samples": Feature({}, train_set=Noisy),
    "loader workers": Feature({"dataloader_num_workers": 2}, train_set=Noisy),
    "bf16": Feature({"bf16": True, "eval_strategy": "epoch"}),
    "fp16": Feature({"fp16": True, "eval_strategy": "epoch"}),
    "group_by_length": Feature({"train_sampling_strategy": "group_by_length", "gradient_accumulation_steps": 2}, **_text()),
    "batch_rebalance": Feature({"train_sampling_strategy": "batch_rebalance"}, **_text()),
    "activation checkpointing": Feature({"activation_checkpointing": True, "eval_strategy": "epoch"}),
    "streams": Feature({"max_steps": 8, "eval_strategy": "steps", "eval_steps": 4}, train_set=Stream, eval_set=Stream),
    "best of steps": Feature(
        {
            "save_strategy": "steps",
            "save_steps": 4,
            "eval_strategy": "steps",
            "eval_steps": 4,
            "load_best_model_at_end": True,
            "save_total_limit": 1,
            "metric_for_best_model": "accuracy",
        }
    ),
    "save the best": Feature(
        {
            "save_strategy": "best",
            "eval_strategy": "steps",
            "eval_steps": 3,
            "metric_for_best_model": "loss",
            "save_only_model": True,
        }
    ),
    "own compute_loss": Feature({"eval_strategy": "epoch"}, mixin=Doubled),
    "own training_step": Feature({}, mixin=Twice),
    "own prediction_step": Feature({"eval_strategy": "epoch"}, mixin=Softened),
    "NEFTune": Feature({"neftune_noise_alpha": 5.0}, **_text()),
    "several evaluation sets": Feature(
        {"eval_strategy": "epoch"}, eval_set=lambda samples: {"all": samples, "some": samples[:4]}
    ),
    "batch_eval_metrics": Feature({"eval_strategy": "epoch", "batch_eval_metrics": True}, metrics=running_mean),
    "inputs for metrics": Feature(
        {"eval_strategy": "epoch", "include_for_metrics": ["inputs", "loss"]}, metrics=with_inputs
    ),
    "preprocessed logits": Feature(
        {"eval_strategy": "epoch", "eval_accumulation_steps": 1},
        more=lambda model: {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)},
        metrics=lambda prediction: {"right": float((prediction.predictions == prediction.label_ids).mean())},
    ),
    "plateau": Feature({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}),
    "greedy schedule": Feature({"lr_scheduler_type": "greedy", "eval_strategy": "epoch"}),
    "auto_find_batch_size": Feature({"auto_find_batch_size": True, "eval_strategy": "epoch"}),
    "tokens seen": Feature(
        _sequential(include_num_input_tokens_seen="non_padding", gradient_accumulation_steps=2), **_fixed()
    ),
    "LoRA": Feature(
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        model=lambda: with_lora(classifier()),
    ),
    "train() twice": Feature({}, act=train_twice),
    "evaluate() first": Feature({}, act=evaluate_first),
    "predict()": Feature({}, act=predict),
    "save_model()": Feature({}, act=save),
    "early stopping": Feature(
        {
            "eval_strategy": "steps",
            "eval_steps": 1,
            "metric_for_best_model": "accuracy",
            "save_strategy": "steps",
            "save_steps": 1,
            "load_best_model_at_end": True,
        },
        more=lambda model: {"callbacks": [EarlyStoppingCallback(1)]},
    ),
    "callbacks": Feature(
        {"eval_strategy": "epoch", "gradient_accumulation_steps": 2, "save_strategy": "epoch", "num_train_epochs": 3},
        more=lambda model: {"callbacks": [Counting()]},
        act=count,
    ),
    "TensorBoard": Feature({"report_to": ["tensorboard"], "eval_strategy": "epoch"}),
    "optimizers=": Feature({}, more=lambda model: {"optimizers": own_optimizer(model)}),
    "datasets": Feature({"eval_strategy": "epoch"}, train_set=columns, eval_set=columns),
    "model_init": Feature(
        {"eval_strategy": "epoch"}, more=lambda model: {"model": None, "model_init": lambda: classifier()}
    ),
    "eval_on_start, full determinism": Feature({"eval_on_start": True, "eval_strategy": "epoch", "full_determinism": True}),
    "a custom module": Feature({"eval_strategy": "epoch"}, model=Plain),
    "custom collections": Feature({}, mixin=Collecting),
    "values of all shards": Feature({"eval_strategy": "epoch"}, mixin=Shares),
    "callbacks that look at batches": Feature({"eval_strategy": "epoch"}, more=lambda model: {"callbacks": [Looking()]}),
    "logits of each word": Feature({"eval_strategy": "epoch"}, model=PerWord, metrics=all_words),
    "losses only": Feature({"eval_strategy": "epoch", "prediction_loss_only": True}, metrics=None),
    "generation": Feature(
        {"eval_strategy": "epoch", "predict_with_generate": True, "generation_max_length": 6},
        seq2seq=True,
        model=translator,
        data=texts,
        collate=pad,
        metrics=lambda prediction: {"sum": int(prediction.predictions.sum()), "count": len(prediction.predictions)},
    ),
}


def names():
    return tuple(FEATURES)


def prepared(name, kind, make_arguments, out, **more):
    """The trainer of a feature, in this process."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    feature = FEATURES[name]
    args = make_arguments(str(out), **{**USUAL, **more, **feature.args})
    transformers.set_seed(7)
    model = feature.model()
    if feature.mixin is not object:
        kind = type("Own", (feature.mixin, kind), {})
    given = {
        "model": model,
        "args": args,
        "train_dataset": feature.train_set(feature.data(TRAINED)),
        "eval_dataset": feature.eval_set(feature.data(EVALUATED, begin=100)),
        "compute_metrics": feature.metrics,
        "data_collator": feature.collate,
        **feature.more(model),
    }
    return kind(**given)


def measured(trainer, act):
    """Returns the weights, the log without times, and the result of ``act``."""
    seen = trainer.train() and None if act is None else act(trainer)
    log = [{name: value for name, value in entry.items() if not is_clock(name)} for entry in trainer.state.log_history]
    return trainer.model.state_dict(), log, seen


class Ended(Exception):  # noqa: N818 -- nobody's error
    pass


class Interrupting(TrainerCallback):
    """Ends the process's training by an error, after so many steps of it."""

    def __init__(self, after):
        self.left = after

    def on_step_end(self, args, state, control, **_):
        self.left -= 1
        if self.left == 0:
            raise Ended


def train(name, out, interrupted_after=0, run_dir=None):
    """On lockstep, in every process of a crew. Returns digest, log, and what the script has
    seen."""
    feature = FEATURES[name]
    kind, arguments = (Seq2SeqTrainer, Seq2SeqTrainingArguments) if feature.seq2seq else (Trainer, TrainingArguments)
    more = {} if run_dir is None else {"lockstep": {"run_dir": str(run_dir), "checkpoint_every": 2}}
    trainer = prepared(name, kind, arguments, out, shards=SHARDS, **more)
    if interrupted_after:
        trainer.add_callback(Interrupting(interrupted_after))
    return come_to(trainer, feature.act)


def come_to(trainer, act):
    """Returns the digest of the weights, the log, and what the script has seen."""
    weights, log, seen = measured(trainer, act)
    digest = hashlib.sha256()
    for key in sorted(weights):
        digest.update(key.encode() + weights[key].detach().float().numpy().tobytes())
    return digest.hexdigest()[:16], log, seen


def train_until_interrupted(name, out, after, run_dir):
    """As ``train``, until an error ends it."""
    try:
        train(name, out, after, run_dir)
    except Ended:
        joined_team().close()
        return True
    return False


def once(trainer):
    trainer.train()


def saving_between(trainer):
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    trainer.train()


def warnings_of(out, run_dir, act, after=0):
    """Train with ``Resetting``, until an error ends it after so many steps; returns the warnings of
    lockstep."""
    args = {"lockstep": {"run_dir": str(run_dir), "checkpoint_every": 2}}
    act = {"once": once, "saving between": saving_between}[act]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = prepared("usual", Trainer, TrainingArguments, out, shards=SHARDS, **args)
        trainer.add_callback(Resetting())
        trainer.add_callback(Interrupting(after))
        try:
            act(trainer)
        except Ended:
            joined_team().close()
    return [str(each.message) for each in caught if str(each.message).startswith("lockstep: ")]


def train_plainly(name, out):
    """By transformers alone, in one process, with the same global batches. Returns the log."""
    for variable in PLACE:
        os.environ.pop(variable, None)
    batch = USUAL["per_device_train_batch_size"] * SHARDS
    trainer = prepared(name, transformers.Trainer, transformers.TrainingArguments, out, per_device_train_batch_size=batch)
    return measured(trainer, FEATURES[name].act)[1]


STAGES = (
    "get_train_dataloader",
    "set_initial_training_values",
    "_init_training_state",
    "_prepare_for_training",
    "_run_epoch",
    "get_batch_samples",
    "training_step",
    "floating_point_ops",
    "_track_num_input_tokens",
    "_clip_grad_norm",
    "_maybe_log_save_evaluate",
    "evaluation_loop",
    "prediction_step",
    "_save_checkpoint",
    "save_model",
    "_save_rng_state",
    "_finalize_training",
)


CALLS = []


class NotedSGD(torch.optim.SGD):
    def step(self, closure=None):
        CALLS.append("optimizer.step")
        return super().step(closure)


class NotedStepLR(torch.optim.lr_scheduler.StepLR):
    def step(self, epoch=None):
        CALLS.append("schedule.step")
        return super().step()


def stages(out):
    """The calls of a plain Trainer, in order: its stages, and what happens to callbacks, optimizer
    and schedule."""

    def noted(name, function):
        def call(*args, **kwargs):
            CALLS.append(name)
            return function(*args, **kwargs)

        return call

    class Noted(transformers.Trainer):
        pass

    for name in STAGES:
        setattr(Noted, name, noted(name, getattr(transformers.Trainer, name)))
    events = ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_step_end", "on_epoch_end")
    note = {name: lambda self, *args, name=name, **kwargs: CALLS.append(name) for name in events}
    callback = type("Noting", (TrainerCallback,), note)()
    for variable in PLACE:
        os.environ.pop(variable, None)
    changed = {"num_train_epochs": 1, "max_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    args = transformers.TrainingArguments(str(out), **{**USUAL, **changed, "gradient_accumulation_steps": 2})
    model = classifier()
    optimizer = NotedSGD(model.parameters(), lr=0.1)
    schedule = NotedStepLR(optimizer, 1)
    trainer = Noted(
        model,
        args,
        train_dataset=rows(8),
        eval_dataset=rows(3),
        callbacks=[callback],
        optimizers=(optimizer, schedule),
        compute_metrics=accuracy,
    )
    CALLS.clear()
    trainer.train()
    return CALLS


def parsed(out):
    """What ``HfArgumentParser`` makes of a command line."""
    parser = transformers.HfArgumentParser(TrainingArguments)
    words = [
        "--output_dir",
        str(out),
        "--shards",
        "4",
        "--lockstep",
        '{"keep": 3}',
        "--use_cpu",
        "True",
        "--report_to",
        "none",
    ]
    (args,) = parser.parse_args_into_dataclasses(words)
    return args.shards, args.lockstep, args.team.num_shards, args.team.config.keep, args.train_batch_size
