"""The contract, interrupted: every feature gives the same bits when a run is killed, or asked to stop, and resumed at
another world size."""

import os
import random
import signal
from functools import partial
from pathlib import Path

import features
import pytest
import whole_steps
from bits import differences
from seeds import seeds

from lockstep.base.config import PRECISIONS
from lockstep.base.errors import LaunchError
from lockstep.base.stopping import REQUEUE_STATUS
from lockstep.journal.history import read_events
from lockstep.loop.loop import Loop

pytestmark = pytest.mark.timeout(90)


def trained(**options):
    return partial(features.train, **options)


def killed_after(step, task, *args):
    """The task, in a process that dies when the step after this one begins, with a checkpoint written just then."""
    begin_step = Loop.begin_step

    def dying_begin_step(self, plan):
        if self.step == step:
            self._saver.save(self.resumption.here(), self.step, self.epoch)
            self._saver.wait_until_written()
            os._exit(7)
        begin_step(self, plan)

    Loop.begin_step = dying_begin_step
    return task(*args)


def asked_to_stop_in(step, task, *args):
    """The task, in processes of which the first is sent SIGTERM in this step."""
    begin_step = Loop.begin_step

    def interrupted_begin_step(self, plan):
        begin_step(self, plan)
        if self.step == step and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGTERM)

    Loop.begin_step = interrupted_begin_step
    return task(*args)


def assert_goes_on(crew, standing_crew, seed, task, *args, shards=4, num_steps=6, every="1h", **settings):
    """Killed, or asked to stop, after a random step on one number of processes, and resumed on another."""
    chance = random.Random(seed)
    step, first, then = chance.randrange(1, num_steps), chance.randint(1, shards), chance.randint(1, shards)
    [whole] = standing_crew(1, task, *args, shards=shards, checkpoint_every="off", **settings)
    settings = {"shards": shards, "checkpoint_every": every, "run_dir": "run", **settings}
    if seed % 2:
        with pytest.raises(SystemExit) as stopped:
            crew(first, partial(asked_to_stop_in, step), task, *args, **settings)
        assert stopped.value.code == REQUEUE_STATUS
        [step] = [event["step"] for event in read_events(Path("run")) if event["event"] == "preempted"]
        what = "asked to stop, and stopped"
    else:
        with pytest.raises(LaunchError, match="status 7"):
            crew(first, partial(killed_after, step), task, *args, **settings)
        what = "killed"
    where = f"{what} after step {step} on {first} processes, resumed on {then}"
    for rank, result in enumerate(standing_crew(then, task, *args, **settings)):
        assert differences(whole["state"], result["state"]) == [], f"state of rank {rank}: {where}"
        assert all(number > step for number in result["by_step"]), where
        for number, values in result["by_step"].items():
            assert differences(whole["by_step"][number], values) == [], f"step {number} of rank {rank}: {where}"
        assert result["losses"].items() <= whole["losses"].items(), where


def test_killed_on_four_processes_and_resumed_on_two_without_any_option_a_run_ends_with_the_same_bits(crew, standing_crew):
    whole, *_ = standing_crew(4, trained(), checkpoint_every="off")
    with pytest.raises(LaunchError, match="status 7"):
        crew(4, partial(killed_after, 3), trained(), run_dir="run")
    for rank, result in enumerate(standing_crew(2, trained(), run_dir="run")):
        assert differences(whole["state"], result["state"]) == [], f"state of rank {rank}"
        assert min(result["by_step"]) > 3


@pytest.mark.parametrize("seed", range(3))
def test_a_run_goes_on_in_the_middle_of_an_epoch(crew, standing_crew, seed):
    assert_goes_on(crew, standing_crew, seed, trained(), every=2)


@pytest.mark.parametrize("seed", range(2))
def test_averages_several_optimizers_and_kept_gradients_go_on(crew, standing_crew, seed):
    assert_goes_on(crew, standing_crew, seed, (features.train_averages, features.train_two_optimizers)[seed])


@pytest.mark.parametrize("seed", range(3))
def test_the_states_of_shards_and_several_phases_go_on(crew, standing_crew, seed):
    task = (
        partial(whole_steps.train_in_words, "samples", True),
        whole_steps.train_gan,
        partial(whole_steps.train_with_closures, "LBFGS, strong_wolfe"),
    )[seed]
    assert_goes_on(crew, standing_crew, seed, task, num_steps=10)


LONG = {
    **{f"optimizer {name}": (trained(optimizer=name), {}) for name in features.OPTIMIZERS},
    **{f"schedule {name}": (trained(schedule=name), {}) for name in features.SCHEDULES},
    **{
        f"{loader} by {weight}": (trained(loader=loader, weight=weight), {})
        for loader in ("samples", "stream", "ready")
        for weight in (None, "tokens", "zeros")
    },
    "short steps": (trained(model="Plain", length=7, batch_size=6, weight="tokens"), {"shards": 6, "num_steps": 4}),
    "six shards": (trained(model="Plain", batch_size=20), {"shards": 6}),
    "zeroed gradients": (trained(set_to_none=False), {}),
    "averages": (features.train_averages, {}),
    "two optimizers": (features.train_two_optimizers, {}),
    "unused parameters": (trained(model="SometimesUnused", batch_size=8, epochs=3), {"num_steps": 18}),
    "frozen": (features.train_frozen, {"num_steps": 12}),
    "two losses": (partial(features.train_two_losses, "by weights"), {}),
    "two phases": (partial(features.train_two_losses, "in phases"), {}),
    "a GAN": (whole_steps.train_gan, {"num_steps": 10}),
    "sharpness": (partial(whole_steps.train_sharp, "Net", 43, 16), {}),
    **{
        f"closures of {kind}": (partial(whole_steps.train_with_closures, kind), {"num_steps": 10})
        for kind in whole_steps.CLOSURES
    },
    "states of shards": (partial(whole_steps.train_in_words, "ready", False), {"num_steps": 10}),
    "random numbers": (whole_steps.draw_everywhere, {"num_steps": 10}),
    **{
        idiom: (partial(whole_steps.train_idiom, idiom), {"num_steps": 15})
        for idiom in ("noise on gradients", "ReduceLROnPlateau on the loss", "steps left out at random")
    },
    "looked at": (partial(features.train_and_look, "evaluation"), {}),
    "two loaders": (features.train_two_loaders, {"shards": 3, "num_steps": 12}),
    "many dtypes": (trained(model="Mixed", weight="tokens"), {}),
    "late buffers": (trained(model="LateBuffer"), {}),
    "checkpointing": (trained(model="reentrant"), {}),
    "accumulation": (trained(model="Deep", length=62, batch_size=8), {"accumulate": 3, "shards": 3}),
    "accumulation of a stream": (
        trained(model="Plain", loader="stream", length=62, batch_size=8),
        {"accumulate": 2, "num_steps": 8},
    ),
    **{
        f"precision {name}": (
            trained(model="reentrant", optimizer="SGD, foreach" if name == "16-true" else "AdamW, foreach"),
            {"precision": name},
        )
        for name in PRECISIONS
    },
    "parameters of 16 bits": (trained(model="bfloat16", weight="tokens"), {}),
    "scaled by the script": (partial(features.train_scaled, "script", "AdamW, foreach"), {"num_steps": 9}),
    "scaled by the run": (trained(model="Plain", length=17, batch_size=8, epochs=3), {"precision": "16-mixed"}),
    "left loops": (partial(features.leave_the_loop, "32-true"), {"num_steps": 4}),
    "compiled": (trained(model="compiled, aot_eager", length=32, epochs=1), {"num_steps": 2}),
}


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("feature", LONG)
def test_every_feature_goes_on(crew, standing_crew, feature, seed):
    task, settings = LONG[feature]
    assert_goes_on(crew, standing_crew, seed * 1000 + sorted(LONG).index(feature), task, **settings)
