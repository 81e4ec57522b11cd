"""Trainer on lockstep, alone and in this process: it trains, logs, calls back and saves as that of
transformers does, a resumed run is an undisturbed one, and what one process must not do is
refused."""

import collections
import contextlib
import copy
import importlib
import importlib.util
import json
import shutil
import types

import pytest
from checkpoint_files import save_at_once
from codes import raises
from kept_imports import keep_imports

from lockstep._base.errors import ConfigError, UsageError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def features(require):
    """The module of that name, after an import that takes seconds."""
    for name in ("transformers", "accelerate", "trl"):
        require(name, None if importlib.util.find_spec(name) else f"{name} is not installed")
    found = importlib.import_module("trainer_features")
    keep_imports()
    return found


@pytest.fixture
def close_runs(features):
    """Calls whose run is closed when the test ends."""
    yield
    session = importlib.import_module("lockstep.integrations.transformers._session")
    if session._team is not None and not session._team.is_closed:
        session._team.close()
    states = importlib.import_module("accelerate.state")
    states.AcceleratorState._reset_state(reset_partial_state=True)
    states.GradientState._reset_state()


def wide(features, kind, arguments, out, dropout=0.0, num_samples=38, **more):
    """A trainer that much is asked of: means over tokens, accumulation, clipping, a schedule,
    evaluations with metrics of all that is there, files, the best of them, and callbacks."""
    from transformers import TrainerCallback

    class Own(features.Softened, kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
            return (1.5 * loss, outputs) if return_outputs else 1.5 * loss

    class Noting(TrainerCallback):
        def __init__(self):
            self.events, self.seen = collections.Counter(), []

        def on_epoch_begin(self, args, state, control, train_dataloader=None, **_):
            self.seen.append(tuple(next(iter(train_dataloader))["input_ids"].shape))

        def on_step_end(self, args, state, control, **_):
            control.should_epoch_stop = state.global_step == 2

    def noted(name, act):
        def event(self, args, state, control, **given):
            if name != "on_train_begin":  # once a launch
                self.events[name] += 1
                self.seen.append((name, args.gradient_accumulation_steps, state.global_step, round(state.epoch or 0.0, 6)))
            return None if act is None else act(self, args, state, control, **given)

        return event

    for name in [name for name in dir(TrainerCallback) if name.startswith("on_") and name != "on_init_end"]:
        setattr(Noting, name, noted(name, vars(Noting).get(name)))

    def metrics(prediction):
        right = (prediction.predictions.argmax(-1)[:, :-1] == prediction.label_ids[:, 1:]).mean()
        words = (prediction.inputs > 0).sum()  # others are padding
        return {"right": float(right), "words": int(words), "worst": float(prediction.losses.max())}

    asked = {
        "train_sampling_strategy": "sequential" if not dropout else "random",
        "per_device_train_batch_size": 2 * (1 if "shards" in more else features.SHARDS),
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.3,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "include_for_metrics": ["inputs", "loss"],
        "include_num_input_tokens_seen": "non_padding",
        "logging_first_step": True,
    }
    features.transformers.logging.set_verbosity_error()
    features.transformers.set_seed(7)
    return Own(
        features.writer(dropout),
        arguments(str(out), **{**features.USUAL, **asked, **more}),
        train_dataset=features.texts(num_samples),
        eval_dataset=features.texts(features.EVALUATED, begin=100),
        compute_metrics=metrics,
        data_collator=features.pad,
        callbacks=[Noting()],
    )


def noted_by(trainer):
    [noting] = [each for each in trainer.callback_handler.callbacks if type(each).__name__ == "Noting"]
    return noting


def told(trainer, out):
    """What a training has come to: names with numbers, and names."""
    result = trainer.train()
    predicted = trainer.predict(trainer.eval_dataset)
    numbers = [("loss", result.training_loss), ("eval", predicted.metrics["test_loss"]), ("best", trainer.state.best_metric)]
    clocks = ("runtime", "per_second", "total_flos")
    for entry in trainer.state.log_history:
        numbers += [(name, value) for name, value in entry.items() if not any(clock in name for clock in clocks)]
    numbers += [("norm", parameter.norm().item()) for parameter in trainer.model.parameters()]
    numbers += [("predicted", value) for value in predicted.predictions[:, :, 0].flatten().tolist()]
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.*"))
    [state] = [json.loads(path.read_text()) for path in out.glob("checkpoint-2/trainer_state.json")]
    return numbers, [files, noted_by(trainer).seen, state["global_step"], state["num_input_tokens_seen"]]


def test_a_training_has_the_log_events_and_files_of_a_plain_one(features, close_runs, tmp_path):
    from lockstep.integrations.transformers import Trainer, TrainingArguments

    plainly = features.transformers.Trainer, features.transformers.TrainingArguments
    numbers, names = told(wide(features, *plainly, tmp_path / "plain"), tmp_path / "plain")
    more = {"shards": features.SHARDS, "lockstep": {"run_dir": str(tmp_path / "run"), "checkpoint_every": "off"}}
    own = wide(features, Trainer, TrainingArguments, tmp_path / "own", **more)
    found, same = told(own, tmp_path / "own")
    assert [name for name, _ in found] == [name for name, _ in numbers]
    assert [value for _, value in found] == pytest.approx([value for _, value in numbers], rel=3e-3, abs=1e-5)
    assert same == names


def come_to(features, out, run_dir, checkpoint_every="off"):
    """What two trainings of a run come to: bits of weights, the log and results, and the events."""
    from lockstep.integrations.transformers import Trainer, TrainingArguments

    settings = {"run_dir": str(run_dir), "checkpoint_every": checkpoint_every, "keep": 99}
    asked = {"shards": 2, "eval_on_start": True, "save_strategy": "no", "load_best_model_at_end": False}
    trainer = wide(features, Trainer, TrainingArguments, out, 0.1, 20, lockstep=settings, **asked)
    save_at_once(trainer.team._engine.saver)
    first = trainer.train()
    log = [*trainer.state.log_history]
    weights, second, seen = features.come_to(trainer, None)
    trainer.team.close()
    noting = noted_by(trainer)
    without_times = [{name: value for name, value in entry.items() if not is_clock(name)} for entry in log]
    return weights, [without_times, second], seen, first.training_loss, first.global_step, noting.seen, noting.events


def is_clock(name):
    return importlib.import_module("lockstep.integrations.transformers._state").is_clock(name)


def test_a_run_of_two_trainings_is_the_same_from_each_kind_of_step(features, close_runs, tmp_path):
    whole = come_to(features, tmp_path / "out", tmp_path / "whole", 1)
    names = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").glob("step-*"))
    assert len(names) == 10
    # at the end of an epoch that is left early, in the last epoch, and in the second training
    for name in (names[1], names[3], names[7]):
        shutil.copytree(tmp_path / "whole" / "checkpoints" / name, tmp_path / name / "checkpoints" / name)
        for file in (tmp_path / "whole").glob("*.*"):
            if file.suffix in (".json", ".pt"):
                shutil.copyfile(file, tmp_path / name / file.name)
        assert come_to(features, tmp_path / "out", tmp_path / name) == whole, name


def test_what_cannot_be_honoured_is_refused_by_name(features, close_runs, tmp_path):
    names, errors = importlib.import_module("trainer_refusals").attempt_all(tmp_path / "out")
    assert [error for name, error in zip(names, errors, strict=True) if name not in error] == []
    assert [error for error in errors if "\n" in error] == []


def test_a_change_of_an_attribute_while_a_shard_is_computed_is_refused_if_it_is_one(features):
    cases = importlib.import_module("trainer_attributes")
    attributes = importlib.import_module("lockstep.integrations.transformers._shard_attributes")

    class Script(types.SimpleNamespace):
        of_class, weights = 0, None

    labels = features.torch.tensor([1, 0])
    for kinds, is_refused in ((cases.KINDS, True), (cases.KEPT, False)):
        for name, (value, change) in kinds.items():
            if "of Trainer" in name:
                continue
            script = Script(value=copy.deepcopy(value))
            if change is cases.Own.assign:
                script.value = features.torch.zeros(2)  # of another shard
            unchanged = attributes.ShardAttributes(script).unchanged("compute_loss")
            with raises(UsageError, "attribute-changed-in-step") if is_refused else contextlib.nullcontext(), unchanged:
                acting = {cases.add: change}.get(change, change)
                acting(script, labels)


def test_arguments_become_the_settings_of_the_run_and_no_two_may_set_one(features, close_runs, tmp_path):
    from lockstep.integrations.transformers import TrainingArguments

    def settings(**given):
        return TrainingArguments.settings(types.SimpleNamespace(**{**vars(plain), **given}))

    usual = {**features.USUAL, "lockstep": {"run_dir": str(tmp_path / "run")}}
    plain = TrainingArguments(str(tmp_path / "out"), **usual, shards=3, gradient_accumulation_steps=2, bf16=True)
    team = plain.team
    assert (team.num_shards, team.config.accumulate, team.config.seed, team.config.precision) == (3, 2, 7, "bf16-mixed")
    assert (plain.train_batch_size, plain.eval_batch_size, plain.process_index, plain.n_gpu) == (6, 5, 0, 0)
    same = TrainingArguments(str(tmp_path / "out"), **usual, shards=3, gradient_accumulation_steps=2, bf16=True)
    assert same.team is team
    for other in ({"shards": 4}, {"seed": 8}, {"gradient_accumulation_steps": 1}, {"fp16": True, "bf16": False}):
        asked = {**usual, "shards": 3, "gradient_accumulation_steps": 2, "bf16": True, **other}
        with raises(ConfigError, "settings-of-joined-run"):
            TrainingArguments(str(tmp_path / "out"), **asked).team  # noqa: B018 -- joins


def test_every_rank_has_the_metrics_of_trl_of_all_shards_in_their_order(features, monkeypatch):
    """A shard has them on one rank; a log empties them; and a resumed run has those of before."""
    trl = importlib.import_module("lockstep.integrations.trl")

    class Recorder(trl.SharedMetrics):
        def __init__(self):
            self._metrics = {"train": collections.defaultdict(list), "eval": collections.defaultdict(list)}
            self._total_train_tokens = 0
            self._keep()

        def record(self, step, shard, mode):
            """What ``compute_loss`` of TRL does."""
            self._total_train_tokens += 10 * step + shard if mode == "train" else 0
            self._metrics[mode]["num_tokens"] = [self._total_train_tokens]
            self._metrics[mode]["entropy"].append(step + shard / 10)
            if shard % 2:
                self._metrics[mode]["accuracy"] += [shard, step]

    monkeypatch.setattr(trl.Trainer, "log", lambda self, mode, start_time=None: self._metrics[mode].clear())
    for ranks in ([[0, 1, 2, 3]], [[0], [1, 2, 3]], [[0, 1], [], [2, 3]]):
        plain, team = Recorder(), [Recorder() for _ in ranks]
        for step in range(1, 8):
            mode = "eval" if step % 3 == 0 else "train"
            for shard in range(4):
                plain.record(step, shard, mode)
            by_shard = []
            for rank, shards in zip(team, ranks, strict=True):
                for shard in shards:
                    rank.record(step, shard, mode)
                    by_shard.append(rank.collect())
            for rank in team:
                rank.take(by_shard)
            if step in (3, 4, 6):
                for each in (plain, *team):
                    each.log(mode)
            if step in (2, 5):
                team = [Recorder() for _ in ranks]
                for rank in team:
                    rank.load_state_dict(copy.deepcopy(plain.state_dict()))
            assert [rank.state_dict() for rank in team] == [plain.state_dict()] * len(team)
