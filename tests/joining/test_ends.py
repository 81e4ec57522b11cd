"""What is left of a run when it ends, however its script left its loops before, and what it caught.

Only a run that has come to its end is finished. Any other is resumed by the next launch, and ends
as the undisturbed one does. Nothing of a run that was closed stays in the process."""

import contextlib
import json
import os
import signal
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

import lockstep
from lockstep._base import exit_status
from lockstep._base.reports import REPORTS
from lockstep._joining.join import joined_team

pytestmark = pytest.mark.timeout(60)
__loader__ = None  # a run searches the variables of its script: not those of pytest, too
BATCHES = [torch.full((4, 1), number / 8) for number in (1, 2, 3)]
NUM_STEPS = 2 * len(BATCHES)
SIGNALS = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT
FINISHED, INTERRUPTED = True, False
LEFT, UNKNOWN = "epochs-left-by-error", "unknown-exit-status"


class LeftError(Exception):
    pass


class Script:
    """A training. ``leave``: called at each place of its loops."""

    def __init__(self, team, leave):
        self.team, self._leave = team, leave
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        self.model, self.optimizer, self.loader = team.prepare(model, optimizer, BATCHES)

    def leave(self, place):
        return self._leave(place, self.team.step)

    def step(self, batch):
        for inputs in batch.shards:
            self.team.backward(self.model(inputs).square().mean())
            self.leave("shards")
        self.optimizer.step()
        self.optimizer.zero_grad()

    def passes(self):
        for batch in self.loader:
            self.step(batch)

    def epochs(self):
        for _ in self.team.epochs(2):
            for batch in self.loader:
                self.step(batch)
                if self.leave("pass"):
                    break
            with self.team.evaluate(self.model, BATCHES) as evaluation:
                for inputs in evaluation.shards:
                    evaluation.add(mean=self.model(inputs).mean(1))
                    self.leave("evaluation")
            if self.leave("epoch"):
                break
        self.leave("after")


class Tracker(types.ModuleType):
    """An experiment tracker, with the exit code that it is told at the end of each run."""

    def __init__(self):
        super().__init__("tracker_of_ends")
        self.codes = []

    def init(self, **_):
        return self

    def log(self, values, step):
        pass

    def finish(self, exit_code):
        self.codes.append(exit_code)


# What a script does about its epochs.


def train(script):
    script.epochs()


def catch(script):
    with contextlib.suppress(LeftError, SystemExit):
        script.epochs()


def catch_and_go_on(script):
    catch(script)
    script.passes()


def catch_and_begin_again(script):
    catch(script)
    script.epochs()


def catch_and_close(script):
    try:
        script.epochs()
    except LeftError:
        script.team.close()


def no_epochs(script):
    script.passes()


# What happens at a place.


def is_left(script):
    return True


def fail(script):
    raise LeftError


def leave_with(code):
    def leave(script):
        sys.exit(code)

    leave.__name__ = f"exit {code}"
    return leave


def get_signal(script):
    signal.raise_signal(signal.SIGTERM)


# How the run is closed.


def close(team):
    team.close()


def _refuse_to_exit(status):
    raise AssertionError(f"the end of the run failed, which would end this process with status {status}")


def at_exit(code=None, error=None):
    """As the process exits: with a status that the launcher has seen (None: nobody has), or by an
    error."""

    def leave(team):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exit_status, "_told", None)
            patch.setattr("lockstep._joining.team.exit_now", _refuse_to_exit)
            if code is not None:
                exit_status.tell(code)
            if error is not None:
                patch.setattr(sys, "last_value", error, raising=False)
            team.close_at_exit()

    leave.__name__ = f"at exit {code if error is None else error!r}"
    return leave


# What the script does; where it is left, in which step, and by what; how it is closed: whether it
# is finished, after which step, and what was said
ENDS = [
    (train, None, close, (FINISHED, 6)),
    (train, ("epoch", 3, is_left), close, (FINISHED, 3)),
    (train, ("pass", 2, is_left), close, (FINISHED, 5)),
    (no_epochs, None, close, (FINISHED, 3)),
    (catch, ("shards", 2, fail), close, (INTERRUPTED, 1, "step-discarded", LEFT)),
    (catch, ("pass", 2, fail), close, (INTERRUPTED, 1, LEFT)),
    (catch, ("evaluation", 3, fail), close, (INTERRUPTED, 2, LEFT)),
    (catch, ("after", 6, fail), close, (FINISHED, 6)),
    (catch, ("pass", 2, get_signal), close, (INTERRUPTED, 2)),
    (catch, ("after", 6, get_signal), close, (FINISHED, 6)),
    (catch_and_go_on, ("pass", 2, fail), close, (FINISHED, 5)),
    (catch_and_go_on, ("evaluation", 3, fail), close, (FINISHED, 6)),
    (catch_and_begin_again, ("pass", 2, fail), close, (FINISHED, 8)),
    (catch_and_close, ("after", 6, fail), None, (INTERRUPTED, 6)),
    (train, ("after", 6, fail), None, (INTERRUPTED, 6)),
    (train, ("pass", 2, leave_with(0)), None, (INTERRUPTED, 1, LEFT)),
    (train, ("after", 6, leave_with(0)), None, (FINISHED, 6)),
    (train, ("after", 6, leave_with(1)), None, (INTERRUPTED, 6)),
    (train, ("pass", 2, get_signal), None, (INTERRUPTED, 2)),
    (train, None, at_exit(0), (FINISHED, 6)),
    (train, None, at_exit(1), (INTERRUPTED, 6)),
    (train, None, at_exit(), (FINISHED, 6)),
    (train, None, at_exit(error=LeftError()), (INTERRUPTED, 6)),
    (train, ("epoch", 3, is_left), at_exit(), (INTERRUPTED, 3, UNKNOWN)),
    (catch, ("pass", 2, fail), at_exit(0), (INTERRUPTED, 1, LEFT)),
    (no_epochs, None, at_exit(), (INTERRUPTED, 3, UNKNOWN)),
]


def words(do, left, end, _):
    place = () if left is None else (left[0], left[2].__name__)
    return " ".join((do.__name__, *place, "with" if end is None else end.__name__))


class Launches:
    """Launches of the script in one directory."""

    def __init__(self, directory):
        self.run_dir, self._reports = directory / "run", directory / "reports"
        self.tracker = sys.modules["tracker_of_ends"] = Tracker()

    def start(self, do, left=None, end=close):
        """Runs it to its end; the weights then."""
        self._reports.unlink(missing_ok=True)
        todo = [left] if left else []

        def leave(place, step):
            if todo and (place, step) == todo[0][:2]:
                return todo.pop()[2](script)
            return False

        torch.manual_seed(5)
        before = process()
        settings = {"shards": 2, "threads": 1, "progress": "off", "checkpoint_every": 1, "track": self.tracker.__name__}
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as at_last:
            patch.setenv(REPORTS, str(self._reports))
            team = lockstep.join(run_dir=str(self.run_dir), **settings)
            script = Script(team, leave)
            at_last.callback(team.close)
            if end is None:
                with contextlib.suppress(LeftError, SystemExit), team:
                    do(script)
            else:
                do(script)
                end(team)
        if end is None or end is close:
            after = process()
            assert not hasattr(sys.exit, "__wrapped__")
            is_stopped = "preempted" in [event["event"] for event in self.events]
            assert after == ({**before, **dict.fromkeys(SIGNALS, signal.SIG_IGN)} if is_stopped else before)
        return [parameter.tolist() for parameter in script.model.parameters()]

    @property
    def newest(self):
        """Whether the newest checkpoint is that of a finished run, and its step."""
        manifests = sorted((self.run_dir / "checkpoints").glob("step-*/manifest.json"))
        newest = json.loads(manifests[-1].read_text())
        return newest["finished"], newest["step"]

    @property
    def events(self):
        return [json.loads(line) for line in (self.run_dir / "events.jsonl").read_text().splitlines()]

    @property
    def said(self):
        lines = self._reports.read_text().splitlines() if self._reports.exists() else []
        return [json.loads(line)["code"] for line in lines]


def process():
    """What a run changes in its process, until it is closed."""
    opened = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return {
        **{number: signal.getsignal(number) for number in SIGNALS},
        "hooks": [*map(len, (_global_optimizer_pre_hooks, _global_optimizer_post_hooks))],
        "team": joined_team(),
        "group": dist.is_initialized(),
        "files": [path for path in opened if "/run/" in path and "/blackbox/" not in path],
    }


@pytest.fixture(autouse=True)
def _as_before():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    sys.modules.pop("tracker_of_ends", None)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Launches(tmp_path_factory.mktemp("undisturbed")).start(train)


@pytest.mark.parametrize(("do", "left", "end", "expected"), ENDS, ids=[words(*row) for row in ENDS])
def test_a_run_is_finished_if_it_came_to_its_end_and_else_it_is_resumed(tmp_path, undisturbed, do, left, end, expected):
    launches = Launches(tmp_path)
    launches.start(do, left, end)
    finished, step, *said = expected
    assert (launches.newest[0], launches.said) == (finished, said)
    saved = launches.newest[1]
    # While one checkpoint is written, no other is.
    assert saved <= step if said else saved == step
    assert (launches.events[-1]["event"] == "end") is finished
    assert launches.tracker.codes == [int(not finished)]
    if not finished and do is not no_epochs and saved < NUM_STEPS:
        assert launches.start(train) == undisturbed
        assert (launches.newest, launches.said) == ((FINISHED, NUM_STEPS), [])
        assert [event["step"] for event in launches.events if event["event"] == "resume"] == [saved]
