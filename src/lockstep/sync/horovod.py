"""Horovod's all-reduce: each gradient is sent as soon as the backward pass has it, under the name of its parameter.

Horovod itself finds out which gradients all ranks have sent, and adds several up together, in whatever order they come. A
gradient that some ranks have and others do not would be waited for without end. So after the backward pass the ranks tell
each other which parameters were used, and those that a rank did not use are sent as zeros. All of Horovod's ranks must take
part in each operation: a step in which some have no samples goes through PyTorch's process group of the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

from lockstep.comm.group import Meeting
from lockstep.comm.horovod import start_horovod
from lockstep.errors import ModelError, PeerError
from lockstep.sync.afterwards import add_absent, add_last, reduce_afterwards, sparse_weights
from lockstep.sync.gradients import Gradients
from lockstep.sync.grouped import GroupedSync
from lockstep.sync.start import take_from_rank_0

_POLL_S = 0.0002  # Horovod itself looks for new operations every millisecond


class Horovod(GroupedSync):
    """The strategy ``horovod``. Every rank must make one: it starts Horovod where the launcher has not.

    Args:
        num_shards: V of the run.
        meeting: how the ranks reach each other outside of Horovod.
        timeout_s: how long a rank is waited for.

    Raises:
        ConfigError: Horovod is missing, or cannot be started here.
    """

    def __init__(self, num_shards: int, meeting: Meeting, timeout_s: float) -> None:
        super().__init__(num_shards, meeting)
        self._horovod = start_horovod(timeout_s)
        self._timeout_s = timeout_s
        self._names: dict[Parameter, str] = {}
        self._wires: dict[Parameter, str] = {}
        """What the gradients are called among the ranks: also two models' parameters of one name have two."""
        self._sparse: list[Parameter] = []
        self._hooks: list[RemovableHandle] = []
        self._listening = False
        """Whether gradients leave as they come."""
        self._share = 1.0
        self._earlier: Gradients = {}
        self._sent: dict[Parameter, Callable[[], Tensor]] = {}
        """What waits for the sum of each gradient that has left."""

    def close(self) -> None:
        """See Sync. Horovod goes on until the process ends: it cannot be left by one rank alone."""
        super().close()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _replicate(self, model: nn.Module) -> Callable[..., Any]:
        take_from_rank_0(model)
        self._sparse += sparse_weights(model)
        for name, parameter in model.named_parameters():
            if parameter in self._names or not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            self._wires[parameter] = f"lockstep.{len(self._names)}.{name}"
            self._names[parameter] = name
            learns = parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one takes no hook, but keeps it
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._arrived))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(learns)
        return model

    def _backward_and_reduce(self, loss: Tensor, call: int, share: float, options: dict[str, Any]) -> Gradients:
        self._share, self._earlier, self._sent = share, self._sums.take(call), {}
        group = self._active_group()
        everyone = self._turn is not None and self._turn.num_active_ranks == self._world_size
        self._listening = everyone and self._world_size > 1
        try:
            loss.backward(**options)  # type: ignore[no-untyped-call]
        finally:
            meet_all, self._listening = self._listening, False
        trainable = [p for p in self._names if p.requires_grad]  # as it is now: scripts freeze and thaw
        rest = [p for p in trainable if p not in self._sent]
        sums: Gradients = {p: self._earlier.pop(p) for p in rest if p in self._earlier}
        self._earlier = {}
        if meet_all:
            return self._send_rest(trainable, rest, sums)
        reduce_afterwards(trainable, sums, share, self._sparse, group)
        return sums

    def _arrived(self, parameter: Parameter) -> None:
        """A gradient is there. (Called by autograd, in the backward pass.)"""
        if not self._listening:
            return
        if parameter in self._sent:
            raise ModelError(
                f"the gradient of {self._names[parameter]!r} came in several parts in one backward pass, after it had been "
                "sent: checkpoint(..., use_reentrant=True) over parameters that are used elsewhere too does that. Use "
                "use_reentrant=False."
            )
        sums: Gradients = {parameter: self._earlier.pop(parameter)} if parameter in self._earlier else {}
        add_last([parameter], sums, self._share)
        if sums:  # without weight the shard is absent, and there may be nothing to send
            self._send(parameter, sums[parameter])

    def _send_rest(self, trainable: list[Parameter], rest: list[Parameter], sums: Gradients) -> Gradients:
        """What has not left during the backward pass, as far as some rank has a gradient; then all sums."""
        add_last(rest, sums, self._share)
        used = torch.tensor([float(p in self._sent or p in sums) for p in trainable])
        self._wait(self._horovod.allreduce_async_(used, name="lockstep.used", op=self._horovod.Sum))
        counts = dict(zip(trainable, used.tolist(), strict=True))
        add_absent(rest, sums, [counts[parameter] for parameter in rest], self._sparse)
        for parameter, part in sums.items():
            self._send(parameter, part)
        waiting, self._sent = self._sent, {}
        return {parameter: wait() for parameter, wait in waiting.items()}

    def _send(self, parameter: Parameter, part: Tensor) -> None:
        """Have Horovod sum this rank's part of a gradient with those of the others. It is changed in place."""
        name, horovod = self._wires[parameter], self._horovod
        if part.is_sparse:
            finish = horovod.sparse_allreduce_async(part.coalesce(), name, op=horovod.Sum)
            self._sent[parameter] = lambda: self._checked(finish).coalesce()
            return
        # Horovod takes real numbers in the usual order of memory, and only where it was built for cards those on one.
        plain = torch.view_as_real(part) if part.is_complex() else part
        wire = plain.contiguous() if plain.device.type == "cpu" or horovod.nccl_built() else plain.contiguous().cpu()
        handle = horovod.allreduce_async_(wire, name=name, op=horovod.Sum)

        def wait() -> Tensor:
            self._wait(handle)
            if wire is not plain:
                plain.copy_(wire)
            return part

        self._sent[parameter] = wait

    def _wait(self, handle: Any) -> None:
        """Wait for an operation. (Horovod's own way spins, which costs the others a core, and knows no end.)"""
        deadline = time.monotonic() + self._timeout_s
        while not self._horovod.poll(handle):
            if time.monotonic() > deadline:
                raise self._failure(f"after {self._timeout_s:g} s some rank has still not come. ")
            time.sleep(_POLL_S)
        self._checked(lambda: self._horovod.synchronize(handle))

    def _checked(self, finish: Callable[[], Any]) -> Any:
        try:
            return finish()
        except self._horovod.HorovodInternalError as error:
            raise self._failure(f"{error} ") from error

    def _failure(self, why: str) -> PeerError:
        step = self._turn.step if self._turn else "?"
        return PeerError(
            f"the gradients of step {step} could not meet through Horovod: {why}If another rank has failed, look at its error "
            "first."
        )
