"""The observer in each process of a launch: a black box, and explanations of errors."""

from __future__ import annotations

from lockstep._base.process_observer import ProcessObserver
from lockstep._tools.explain.sampler import fail_current, note_end
from lockstep._tools.explain.worker_box import WorkerBox


class ProcessExplainer(ProcessObserver):
    """Records what the process does, for the launcher's ``Explainer`` and ``lockstep stacks``."""

    def begin(self, private_dir: str, rank: int, world_size: int, program: str) -> None:
        """Open the black box."""
        WorkerBox(private_dir, rank, world_size, program)

    def end(self, how: str) -> None:
        """Note the end in the black box, which records what still keeps the process from now on."""
        note_end(how)

    def fail(self, traceback: str) -> None:
        """Close the black box, which keeps what the process did before."""
        fail_current(traceback)

    def explain_error(self, error: BaseException) -> str:
        """Explains PyTorch's cryptic errors."""
        # only here: needed by failures alone
        from lockstep._tools.explain.errors.explanation import explain_error

        return explain_error(error)
