"""Times the steps of a script that does not use lockstep, through PyTorch's global hooks on optimizers and gradients.

A step ends with ``optimizer.step()``. Between its last gradient and the end of the backward pass, a rank waits for the others,
for the all-reduces of DistributedDataParallel. From there to ``optimizer.step()`` it waits for the script's own all-reduces, or
it is busy, with clipping gradients, say: samples of its stack tell which. The rest of the time it is busy, except where samples
show it in a collective: of the script's own (a loss, a metric), of SyncBatchNorm, or of FSDP. So the rank that the others wait
for is busy for longer than they are, and waits for less time; no clocks of different machines are compared. What a rank is busy
with is known from samples of its stack, too, taken by the sampler's thread.

Which gradient is the last of a backward pass is determined in the first step of each optimizer; ``fully_shard`` tells of none,
so samples alone divide its steps. On a GPU the times are those of the script, which runs ahead of the GPU until something makes
it wait: the wait before ``optimizer.step()`` may then be for its own GPU (``scaler.step``, ``loss.item()``), not for others.
"""

from __future__ import annotations

import contextlib
import math
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FrameType
from typing import Any

from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.flight_recorder import counts
from lockstep.tools.explain.places import Place, Places, activity_at, where

WINDOW = 10
"""Steps per summary."""
WAITING = "waiting"
"""What counts samples of a thread in a collective, beside those of ``ACTIVITIES``."""
_MOST_WINDOWS = 64
_MOST_STEPS = 10
_MOST_WITH_PLACES = 20
"""Windows that keep their places: no more are sent to judge by (``slow_script_ranks``)."""
_MOST_OPTIMIZERS = 8
_MOST_AFTER, _MANY_AFTER = 200, 100
_ALL_AFTER = 0.9
"""From this share of the samples on, all of the time between the backward pass and the optimizer step is the script's own."""
_COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/torch/nn/modules/_functions.py")
"""Code in which a thread mostly waits for other ranks; the last is SyncBatchNorm's."""
_STAGES = ("/torch/distributed/pipelining/", "/torch/distributed/rpc/")
_POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
"""Where ranks have different tasks, and so may wait for different times: that makes none of them slow."""
_DOING = {
    "data": "getting a batch from the loader",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "saving": "writing a file",
    "script": "in the script",
}


Window = Sequence[Any]
NUMBER, BUSY_20, BUSY_50, BUSY, WAITED, SAMPLES, SPENT = range(7)
"""Columns of a window: see ``ScriptClock.history``."""
Step = tuple[float, float, float]
"""Seconds busy, waiting within the backward pass, and between that and the optimizer step."""


class ScriptClock:
    """Times the steps of this process until it is closed. Must be created by the main thread."""

    def __init__(self) -> None:
        self.num_steps = 0
        """Optimizer steps so far, not counting those that use the same gradients as the step before."""
        self.activity = _DOING["script"]
        """What the main thread was doing when it was last seen."""
        self._left_s = 0.0
        """When the latest step ended."""
        self._ready_s = 0.0
        """When the last gradient of the latest backward pass was ready, as far as is known."""
        self._returned_s = 0.0
        """When the latest backward pass ended, as far as is known."""
        self._began_s = 0.0
        """When the latest optimizer step began."""
        self._is_silent = False
        """Whether an optimizer's parameters do not tell when they receive their gradients."""
        self._steps: list[Step] = []
        """Of the current window."""
        self._newest: deque[Step] = deque(maxlen=_MOST_STEPS)
        self._after: deque[bool] = deque(maxlen=_MOST_AFTER)
        """Of the latest samples between a backward pass and the optimizer step, whether the script's own code ran."""
        self._windows: tuple[list[Any], ...] = ()
        self._seen: Counter[str] = Counter()
        self._places = Places()
        self._glanced_s = perf_counter()
        """When the latest sample was taken."""
        self._finders: weakref.WeakKeyDictionary[Any, _LastGradient | None] = weakref.WeakKeyDictionary()
        """By optimizer; None once its last gradient is known."""
        self._hooks: list[Any] = []
        optimizers = sys.modules.get("torch.optim.optimizer")  # never imported for this
        if optimizers is not None:
            self._is_compiling: Callable[[], bool] = sys.modules["torch"].compiler.is_compiling
            self._hooks.append(optimizers.register_optimizer_step_pre_hook(self.before_optimizer))
            self._hooks.append(optimizers.register_optimizer_step_post_hook(self.after_optimizer))

    def close(self) -> None:
        """Remove all hooks. Called by the main thread."""
        for hook in (*self._hooks, *(hook for finder in self._finders.values() if finder for hook in finder.hooks)):
            hook.remove()
        self._hooks = []

    def history(self) -> dict[str, Any]:
        """For the black box. Called from another thread.

        ``num_steps``; ``newest``: seconds busy and waiting of the latest steps; ``windows``: for each its number, the 20th
        percentile and the median of the busy seconds, the means of the busy and the waiting seconds, the samples in the busy
        ones by activity or ``WAITING``, and rows of ``Spent``, with the place's index in ``places``, of activities and lines;
        ``on_gpu``: whether this process uses a GPU.
        """
        places: dict[Place, int] = {}
        windows = self._windows  # read once: the other thread replaces it
        shown = [[*window[:SPENT], []] for window in windows]
        for row, window in zip(shown[-_MOST_WITH_PLACES:], windows[-_MOST_WITH_PLACES:], strict=True):
            for place, usual_s, whole_s in window[SPENT]:
                index = places.setdefault(place, len(places))
                row[SPENT].append([index, round(usual_s, 3), round(whole_s, 3)])
        return {
            "num_steps": self.num_steps,
            "newest": [[round(busy_s, 6), round(waited_s, 6)] for busy_s, waited_s in self._split(tuple(self._newest))],
            "windows": shown,
            "places": [list(place) for place in places],
            "on_gpu": _uses_gpu(),
        }

    def see(self, frame: FrameType | None) -> None:
        """Note what the main thread is doing, at a sample for the black box: the two must agree. Called from another thread."""
        self.activity = _DOING[where(frame).activity]

    def glance(self, frame: FrameType | None) -> None:
        """Sample what the main thread is doing. Called from another thread."""
        now = perf_counter()
        passed_s, self._glanced_s = now - self._glanced_s, now
        place = where(frame)
        activity = place.activity
        if self._ready_s > max(self._left_s, self._began_s):
            if self._returned_s <= self._ready_s:
                if activity == "backward" or _is_in_collective(frame):
                    return  # that time counts as waiting
            elif activity in ("script", "saving"):  # not in the next micro-step
                is_own = not _communicates(frame)
                self._after.append(is_own)
                if not is_own:
                    return
        if _is_in_collective(frame):
            self._seen[WAITING] += 1
            return
        self._seen[activity] += 1
        self._places.note(place, passed_s)

    # Hooks within the script's own calls: they must not fail, or take long

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        """An optimizer step begins."""
        if self._is_compiling():  # the hooks must not be compiled into the script's graph
            return
        self._began_s = perf_counter()
        if self._finders.get(optimizer, _NEW) is not None:
            with contextlib.suppress(Exception):
                self._find_last_gradient(optimizer)

    def after_optimizer(self, *_: Any) -> None:
        """An optimizer step has ended."""
        if self._is_compiling():
            return
        before_s, self._left_s = self._left_s, perf_counter()
        if self._ready_s and self._ready_s <= before_s:
            return
        self.num_steps += 1
        if not before_s:  # samples of what came before the steps are none of theirs
            self._seen = Counter()
            self._places.begin()
        if before_s and self._ready_s > before_s:
            # With a closure the backward pass runs inside the optimizer step, whose own work then counts as waiting.
            waited_s = (self._began_s if self._began_s > self._ready_s else self._left_s) - self._ready_s
            after_s = max(0.0, self._began_s - self._returned_s) if self._returned_s > self._ready_s else 0.0
            step = (self._left_s - before_s - waited_s, waited_s - after_s, after_s)
            self._note_step(step)
        elif before_s and self._is_silent:
            self._note_step((self._left_s - before_s, 0.0, 0.0))
        if self.num_steps % WINDOW == 0:
            self._close_window()

    def _note_step(self, step: Step) -> None:
        self._steps.append(step)
        self._newest.append(step)
        self._places.end_step()

    def note_gradient(self, _: Any) -> None:
        """The last gradient of a backward pass is ready."""
        if self._is_compiling():  # with compiled autograd
            return
        self._ready_s = perf_counter()
        if not _uses_gpu():  # there, what follows waits for the GPU, which may wait for other ranks
            with contextlib.suppress(Exception):
                call_after_backward(self._note_return)

    def _note_return(self) -> None:
        self._returned_s = perf_counter()

    def _split(self, steps: Sequence[Step]) -> list[tuple[float, float]]:
        """Seconds busy and waiting in each step."""
        after = tuple(self._after)
        own = own_share(sum(after), len(after))
        return [(busy_s + own * after_s, waited_s + (1 - own) * after_s) for busy_s, waited_s, after_s in steps]

    def _close_window(self) -> None:
        steps, self._steps = self._split(self._steps), []
        seen, self._seen = self._seen, Counter()
        spent = self._places.take([busy_s for busy_s, _ in steps])
        if len(steps) < WINDOW // 2:
            return
        busy = sorted(busy_s for busy_s, _ in steps)
        means = (sum(busy) / len(steps), sum(waited_s for _, waited_s in steps) / len(steps))
        # Three digits are enough to judge by, and short: every launcher sends them to the first one.
        numbers = [float(f"{number:.3g}") for number in (busy[len(busy) // 5], busy[len(busy) // 2], *means)]
        self._windows = (*self._windows[1 - _MOST_WINDOWS :], [self.num_steps // WINDOW, *numbers, dict(seen), spent])

    def _find_last_gradient(self, optimizer: Any) -> None:
        """Before an optimizer's first step, hook the gradients of all its parameters; before its second, only the last one."""
        finder = self._finders.get(optimizer)
        if finder is None:
            if len(self._finders) >= _MOST_OPTIMIZERS:
                self._finders[optimizer] = None
                return
            finder = self._finders[optimizer] = _LastGradient(self._is_compiling)
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                if parameter.requires_grad:
                    finder.hooks.append(parameter.register_post_accumulate_grad_hook(finder.note))
            return
        self._finders[optimizer] = None
        for hook in finder.hooks:
            hook.remove()
        if finder.last is None:
            self._is_silent = True
        else:
            self._ready_s = max(self._ready_s, finder.ready_s)
            self._hooks.append(finder.last.register_post_accumulate_grad_hook(self.note_gradient))


class _LastGradient:
    """Determines which parameter of an optimizer receives its gradient last."""

    def __init__(self, is_compiling: Callable[[], bool]) -> None:
        self._is_compiling = is_compiling
        self.hooks: list[Any] = []
        self.last: Any = None
        self.ready_s = 0.0

    def note(self, parameter: Any) -> None:
        """A parameter has received its gradient."""
        if self._is_compiling():
            return
        self.last, self.ready_s = parameter, perf_counter()


_NEW = _LastGradient(bool)


def own_share(num_own: int, count: int) -> float:
    """The share of the time between the backward pass and the optimizer step in which the script's own code runs.

    All of it if nearly all samples say so. Else, with many samples, at least so much but for chance, and with few nothing: no
    rank must be slow by chance. Pure.

    Args:
        num_own: samples of the script's own code.
        count: all samples.
    """
    if num_own > _ALL_AFTER * count:
        return 1.0
    if count < _MANY_AFTER:
        return 0.0
    share = num_own / count
    return max(0.0, share - 2 * math.sqrt(share * (1 - share) / count))


def call_after_backward(call: Callable[[], None]) -> None:
    """Call it when the backward pass that runs now has ended, all-reduces of DistributedDataParallel included."""
    # Private: nothing public tells of the end. Calls that others queue later in the backward pass must come first, so this one
    # queues itself again.
    queue = sys.modules["torch"].autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))


def _communicates(frame: FrameType | None) -> bool:
    """Whether a thread outside of a backward pass communicates with other ranks."""
    if frame is not None and "/torch/distributed/" in frame.f_code.co_filename:
        return True
    now = counts()
    return sum(now.begun.values()) > now.num_done  # ``work.wait()`` has no frame


def _is_in_collective(frame: FrameType | None) -> bool:
    if frame is None or frame.f_code.co_name in _POINT_TO_POINT:
        return False
    file = frame.f_code.co_filename
    return any(part in file for part in _COLLECTIVES) and not any(part in file for part in _STAGES)


def _uses_gpu() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # never imported for this
    return cuda is not None and bool(cuda.is_initialized())


def doing_at(frames: Sequence[Frame]) -> str:
    """What a thread with this stack, innermost frame first, is doing, in words."""
    return _DOING[next((activity for file, _, name in frames if (activity := activity_at(file, name))), "script")]
