"""Opens the auditor of a run."""

from __future__ import annotations

from lockstep._base.reports import warn
from lockstep._base.stopping import say
from lockstep._joining.instrument import Run
from lockstep._loop.dry_runs import DryRuns
from lockstep._plan.shards import StepPlan
from lockstep._tools.audit.auditor import Auditor, AuditTimer
from lockstep._tools.audit.choice import Choice, check_strategy, choose
from lockstep._tools.audit.verdict import Verdict
from lockstep._world.kernels import kernels_repeat


def open_audit(run: Run, every: int) -> Auditor:
    """Create the auditor, and have the run audited every so many steps.

    Raises:
        ConfigError: a run with this strategy cannot be audited.
    """
    config, rank, device = run.config, run.world.rank, run.devices[0]
    check_strategy(config.strategy)
    if device.type != "cpu" and rank == 0 and not kernels_repeat():
        warn(
            "audit: without torch.use_deterministic_algorithms(True), or with cudnn.benchmark, GPU kernels may compute "
            "different bits each time, and an audit then stops the run.",
            code="audit-kernels-nondeterministic",
        )

    def chosen(step: int, plan: StepPlan) -> Choice | None:
        if step % every:
            return None
        return choose(
            seed=run.phases.parts.seed,
            step=step,
            every=every,
            num_filled=min(max(plan.sizes), plan.blocks.num_shards),
            blocks=plan.blocks,
        )

    def report(verdict: Verdict) -> None:
        run.events.write("audit", **verdict.as_json())
        if rank == 0:
            say(f"ERROR: {verdict.text}")

    dry_runs, timer = DryRuns(run.phases, run.strategy, run.state), AuditTimer(run.clock)
    where = f"{run.world.host}, {device}"
    auditor = Auditor(chosen, run.collectives, run.phases, dry_runs, where, run.devices, report, timer)
    run.phases.micro_batches = auditor.runs
    run.phases.parts.peers.row_parts.append(auditor)
    return auditor
