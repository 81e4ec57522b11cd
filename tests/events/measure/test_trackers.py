"""Promises of trackers: each value once and in order, also of a resumed run; and nothing that goes
wrong in one matters."""

import contextlib
import importlib
import json
import sys
import textwrap

import pytest

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._base.trackers import without_services
from lockstep._events.history import read_history
from lockstep._events.measure.trackers import RunInfo, TensorBoard, Tracker, Trackers, trackers_for

pytestmark = pytest.mark.timeout(120)

RECORDER = """
    import json, random
    def init(project, name, config, dir, id, resume):
        random.seed(1)
        note("init", project=project, name=name, config=config, id=id, resume=resume)
    def log(values, step):
        random.random()
        note("log", step=step, **values)
    def finish(exit_code):
        note("finish", exit_code=exit_code)
    def note(what, **fields):
        with open("recorded", "a") as file:
            file.write(json.dumps({"what": what, **fields}) + chr(10))
"""
SCRIPT = """
    import os, random, sys, time, torch, lockstep
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    with lockstep.join({join}) as team:
        model, data = torch.nn.Linear(4, 1), TensorDataset(torch.randn(40, 4))
        optimizer, plain = torch.optim.SGD(model.parameters(), lr=0.25), DataLoader(data, batch_size=4)
        model, optimizer, loader = team.prepare(model, optimizer, plain)
        for epoch in team.epochs(2):
            for batch in loader:
                for (x,) in batch.shards:
                    loss = model(x).square().mean() * random.random()
                    team.backward(loss)
                    batch.add(loss=loss)
                team.log(loss=batch["loss"])
                optimizer.step()
                optimizer.zero_grad()
                if team.step == 5:
                    with team.evaluate(model, plain) as evaluation:
                        for batch in evaluation:
                            for (x,) in batch.shards:
                                batch.add(early=x.mean(1))
                    team.log(drawn=random.random())  # which must be the same on all ranks
                if team.step == 16 and "fail" in sys.argv and os.environ["RANK"] == "0" and not os.path.exists("failed"):
                    open("failed", "w").close()
                    raise SystemExit(3)
        weights = sum(p.sum().item() for p in model.parameters())
        team.print("weights", weights)
"""


@pytest.fixture
def package(tmp_path):
    """``package(source)``: a module ``recorder``: where it is."""

    def make(source):
        place = tmp_path / "site"
        place.mkdir()
        (place / "recorder.py").write_text(textwrap.dedent(source))
        return place

    return make


@pytest.fixture
def train(run_here, monkeypatch, tmp_path):
    def call(*options, join="", args=(), site=None, closes=True):
        script = (
            SCRIPT if closes else SCRIPT.replace("with lockstep.join({join}) as team", "if team := lockstep.join({join})")
        )
        script = textwrap.dedent(script)
        with monkeypatch.context() as patch:
            if site is not None:
                patch.syspath_prepend(site)  # in the launcher, and in its workers
                script = f"import sys; sys.path.insert(0, {str(site)!r})\n{script}"
            own = ("--nproc", "2", "--run-dir", "run", "--checkpoint-every", "6", "--log-every", "3", "--progress", "off")
            return run_here(script.replace("{join}", join), *own, *options, args=args)

    return call


def recorded(tmp_path):
    return [json.loads(line) for line in (tmp_path / "recorded").read_text().splitlines()]


def weights(done):
    return [line for line in done.stdout.splitlines() if line.startswith("weights")]


def test_a_resumed_run_goes_on_in_the_same_tracker(train, package, tmp_path):
    site = package(RECORDER)
    failed = train("--track", "recorder:birds", args=["fail"], site=site)
    assert failed.returncode == 3, failed.stderr
    done = train("--track", "recorder:birds", args=["fail"], site=site)
    assert done.returncode == 0, done.stderr
    calls = recorded(tmp_path)
    first, second = [call for call in calls if call["what"] == "init"]
    assert (first["project"], first["name"], first["resume"]) == ("birds", "run", "allow")
    assert first["id"] == second["id"]
    config = first["config"]
    assert (config["world_size"], config["batch_size"], config["epochs"], config["birth"]["shards"]) == (2, 4, 2, 2)
    assert config["optimizers"][0]["lr"] == 0.25
    logged = [call for call in calls if call["what"] == "log"]
    assert {call["step"] for call in logged if "training/loss" in call} == {*range(1, 21)}
    assert [call["step"] for call in logged if "evaluation/early" in call] == [5]
    assert [call["exit_code"] for call in calls if call["what"] == "finish"] == [1, 0]
    losses = {event["step"]: event["values"]["loss"] for event in read_history(tmp_path / "run") if event["event"] == "step"}
    assert {call["step"]: call["training/loss"] for call in logged if "training/loss" in call} == losses
    # It draws random numbers on rank 0, and the weights are those of a run without it.
    plain = train("--track", "off", "--fresh")
    assert weights(plain) == weights(done) != []


def test_a_tracker_that_fails_is_said_once_and_training_goes_on(train, package):
    broken = textwrap.dedent(RECORDER) + "\ndef log(*args, **options):\n    raise ConnectionError('no route')\n"
    done = train("--track", "recorder", site=package(broken))
    assert (done.returncode, len(weights(done))) == (0, 1)
    said = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert len(said) == 1
    assert "the tracker recorder cannot be" in said[0]
    assert "no route. Training continues without it" in said[0]


def test_of_trackers_a_trial_keeps_what_writes_into_its_run_directory():
    assert without_services(None) is None
    assert without_services(("wandb:birds",)) == ("off",)
    assert without_services(("recorder", "tensorboard")) == ("tensorboard",)


def test_names_are_checked_before_anything_starts():
    assert RunConfig(track="wandb:birds, tensorboard").track == ("wandb:birds", "tensorboard")
    assert RunConfig(track="off").track == ("off",)
    for value in ("", "off,wandb", 3, [3]):
        with pytest.raises(ConfigError, match="track="):
            RunConfig(track=value)


def test_a_tracker_is_finished_before_its_library_ends(train, package, tmp_path):
    library = RECORDER.replace("random.seed(1)", "__import__('atexit').register(note, 'exit')")
    done = train("--track", "recorder", site=package(library), closes=False)
    assert done.returncode == 0, done.stderr
    assert [call["what"] for call in recorded(tmp_path)][-3:] == ["log", "finish", "exit"]


def test_tensorboard_gets_training_and_evaluation_apart_and_each_step_of_a_resumed_run_once(tmp_path, run_here):
    done = run_here(
        """
        import sys
        from pathlib import Path
        from lockstep._events.measure.trackers import TensorBoard, Trackers

        trackers = Trackers([TensorBoard(Path(sys.argv[1]), None)])
        assert "tensorboard" not in sys.modules, "it takes a second, and nothing was logged yet"
        for step in (1, 2):
            trackers.write("step", step, {"loss": 0.5})
        trackers.write("evaluate", 2, {"loss": 0.25})
        trackers.write("step", 3, {"loss": 0.5})
        trackers.close(failed=True)
        trackers = Trackers([TensorBoard(Path(sys.argv[1]), 2)])
        trackers.write("step", 3, {"loss": 0.75})
        trackers.close(failed=False)

        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(sys.argv[1])
        board.Reload()
        for tag in sorted(board.Tags()["scalars"]):
            print("tag", tag, *(f"{each.step}: {each.value}" for each in board.Scalars(tag)))
        """,
        args=[str(tmp_path)],
    )
    tags = [line for line in done.stdout.splitlines() if line.startswith("tag")]
    assert tags == ["tag evaluation/loss 2: 0.25", "tag training/loss 1: 0.5 2: 0.5 3: 0.75"], done.stderr


def test_a_tensorboard_that_cannot_be_imported_does_not_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    trackers = Trackers([TensorBoard(tmp_path, None)])
    trackers.write("step", 1, {"loss": 0.5})
    trackers.close(failed=False)


def test_each_tracker_of_a_run_goes_on_in_its_own_run(tmp_path, package, monkeypatch):
    site = package("runs = []\ndef init(id):\n    runs.append(id)\ndef log(*_, **__): pass\ndef finish(): pass\n")
    (site / "other_recorder.py").write_text((site / "recorder.py").read_text())
    monkeypatch.syspath_prepend(site)
    names = ("recorder", "other_recorder")
    for is_again in (False, True):
        about = RunInfo(
            run_dir=tmp_path, project="p", settings={}, hyperparameters={}, is_again=is_again, aside=contextlib.nullcontext
        )
        for tracker in trackers_for(names, about, None):
            tracker.open()
            tracker.close(failed=False)
    ids = [importlib.import_module(name).runs for name in names]
    assert [len(set(of_one)) for of_one in ids] == [1, 1]
    assert ids[0] != ids[1]


def test_what_is_logged_only_apart_from_training_steps_is_in_no_training_curve():
    rows = []

    class Kept(Tracker):
        def write(self, group, step, values):
            rows.append((group, step, sorted(values)))

    trackers = Trackers([Kept()])
    trackers.write("step", 1, {"loss": 1.0})
    trackers.write("step", 2, {"loss": 1.0, "accuracy": 0.5}, ("loss", "accuracy"))
    trackers.write("evaluate", 2, {"loss": 1.0})
    assert rows == [
        ("training", 1, ["loss"]),
        ("training", 2, ["loss"]),
        ("logged", 2, ["accuracy"]),
        ("evaluation", 2, ["loss"]),
    ]
