"""The batches of an evaluation, whose values are computed when the script first reads them.

Each batch of an evaluation belongs to one rank, and W ranks compute W batches (a round) at the same
time, although the script's loop sees one batch after another. When the loop reads a value of the
first batch of a round, every rank runs the same operations on its batch of the round. The values of
the other batches are then ready when the loop reaches them, if it runs the same operations::

    loop at batch    rank 0 computes    rank 1 computes    all ranks receive
    0                batch 0            batch 1            the values of batch 0
    1                -                  -                  the values of batch 1

If the operations differ (``if batch_idx == 0: ...``), the round is computed again for them."""

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
    """One batch of an evaluation, all of whose samples are on one rank.

    Args:
        team: the team of this process.
        batch: the batch that the evaluation yielded.
        round_: the programs of the batches of the same round.
        num_rows: the number of samples of a smaller last batch; None: the batch is full.
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
        """Returns the structure of the round's first batch, on every rank. Every rank must call
        it."""
        assert self._batch is not None
        for data in self._batch.shards:
            self._batch.share(shape_of(data))
        self._round.programs.append(None)
        self._turn += 1
        [structure] = self._batch.shared()
        return structure

    def values(self, nodes: list[Node]) -> list[Any]:
        """Returns the values of several nodes, in one exchange. Every rank must call it.

        If an earlier batch of the round read values of the same operations, this batch's values
        already exist. Otherwise, all ranks compute the operations for the round now."""
        if self._batch is None:
            raise UsageError(
                "a value of an evaluation batch was read for the first time after the loop fetched the next batch. Read it "
                "inside the loop: predictions = accelerator.gather_for_metrics(predictions).",
                code="evaluation-value-too-late",
            )
        program = Program(nodes)
        while True:
            turn, self._turn = self._turn, self._turn + 1
            failure: Exception | None = None
            for data in self._batch.shards:
                try:
                    self._batch.share(self._run(program, data))
                except Exception as error:
                    # This rank runs a program on its own batch, which the script may not run there.
                    # Only a failure on the batch that the loop is at is the script's error.
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
                raise failure or UsageError(
                    f"another process failed on this batch of the evaluation: {values.error}. Look at that process's error.",
                    code="evaluation-failed-elsewhere",
                )

    def _run(self, program: Program, data: Any) -> list[Any]:
        self._check(data)
        memo = self._round.memo_of(program)
        program.run(data, memo, gradients=False)
        return [memo[number] for number in program.targets]


@dataclass(frozen=True)
class _Failed:
    """The message that a rank shares instead of values when an operation failed."""

    error: str


class Round:
    """The programs that ran on the batches of a round, in order."""

    def __init__(self) -> None:
        self.programs: list[Program | None] = []
        """The programs of the round; None: only the structure of the batches was read."""
        self.memo: dict[int, Any] = {}
        """The results of this rank's batch, by the number of the operation."""
        self._of: Program | None = None

    def memo_of(self, program: Program) -> dict[int, Any]:
        """Returns the results that a program can use again: the results of calls that it has in
        common with the program before it."""
        if self._of is not None:
            self.memo = {number: value for number, value in self.memo.items() if program.shares_call(self._of, number)}
        self._of = program
        return self.memo
