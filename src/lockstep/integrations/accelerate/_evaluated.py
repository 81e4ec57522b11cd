"""The batches of an evaluation, whose values are known as soon as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from typing_extensions import override

import lockstep
from lockstep._base.errors import UsageError
from lockstep._data.evaluation_pass import EvaluationBatch
from lockstep.integrations.accelerate._batches import PromisedBatch
from lockstep.integrations.accelerate._program import Program
from lockstep.integrations.accelerate._promise import Node
from lockstep.integrations.accelerate._structure import map_tensors, shape_of


class EvaluatedBatch(PromisedBatch):
    """One batch of an evaluation: whole, on the rank that owns it.

    Args:
        team: of this process.
        batch: what the evaluation yielded.
        round_: what the batches of the same round have computed.
        num_rows: samples of the batch, if it is a last, smaller one.
    """

    is_ready = is_evaluated = True

    def __init__(self, team: lockstep.Team, batch: EvaluationBatch, round_: Round, num_rows: int | None = None) -> None:
        super().__init__(team)
        self.num_rows = num_rows
        self._batch: EvaluationBatch | None = batch
        self._round = round_
        self._turn = 0

    @override
    def end(self) -> None:
        self._batch = None

    @override
    def check_constant(self, value: Tensor) -> None:
        pass

    @override
    def value(self, node: Node) -> Any:
        [value] = self.values([node])
        return value

    def read_structure(self) -> Any:
        """The structure of the round's first batch, on every rank. Every rank must call it."""
        assert self._batch is not None
        for data in self._batch.shards:
            self._batch.share(shape_of(data))
        self._round.programs.append(None)
        self._turn += 1
        [structure] = self._batch.shared()
        return structure

    def values(self, nodes: list[Node]) -> list[Any]:
        """The values of several nodes, in one exchange. Every rank must call it.

        Ranks compute as many batches as there are ranks at once, each its own. So a batch's value
        may have been computed when the first batch of the round asked for its own, by the same
        operations. Otherwise, there is another pass for it."""
        if self._batch is None:
            raise UsageError(
                "a value of an evaluation batch was needed after the loop had taken the next batch, and had not been "
                "computed. Read it in the loop: predictions = accelerator.gather_for_metrics(predictions)."
            )
        program = Program(nodes)
        while True:
            turn, self._turn = self._turn, self._turn + 1
            failure: Exception | None = None
            for data in self._batch.shards:
                try:
                    self._batch.share(self._run(program, data))
                except Exception as error:  # perhaps since the program is this batch's, and the samples are another's
                    failure = error
                    self._batch.share(_Failed(f"{type(error).__name__}: {error}"))
            is_mine = turn == len(self._round.programs)
            if is_mine:
                self._round.programs.append(program)
            if self._round.programs[turn] != program:
                continue
            [values] = self._batch.shared()
            if not isinstance(values, _Failed):
                return [map_tensors(value, lambda tensor: tensor.to(self.device)) for value in values]
            if is_mine:
                raise failure or UsageError(f"the process that has this batch of the evaluation has failed: {values.error}")

    def _run(self, program: Program, data: Any) -> list[Any]:
        self._check(data)
        memo = self._round.memo_of(program)
        program.run(data, memo, gradients=False)
        return [memo[number] for number in program.targets]


@dataclass(frozen=True)
class _Failed:
    """Shared in place of values."""

    error: str


class Round:
    """The programs that the batches of a round have run, one for each pass over them."""

    def __init__(self) -> None:
        self.programs: list[Program | None] = []
        """None: the structure of the batches was read."""
        self.memo: dict[int, Any] = {}
        """This rank's results, in its own batch of the round."""
        self._of: Program | None = None

    def memo_of(self, program: Program) -> dict[int, Any]:
        """The results that a program may use again: those of calls that it has in common with the
        last."""
        if self._of is not None:
            self.memo = {number: value for number, value in self.memo.items() if program.shares_call(self._of, number)}
        self._of = program
        return self.memo
