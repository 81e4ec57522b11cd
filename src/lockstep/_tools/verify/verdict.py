"""The results of a verification as text: a line per setting, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep._tools.verify.verification import SettingResult, Verification
from lockstep._tools.verify.words import describe_diagnosis, describe_difference, findings_under, indented
from lockstep._world.machine.sizes import counted

_DIGITS = 16


def outcome(verification: Verification, result: SettingResult) -> str:
    """The outcome of a setting, in one line."""
    took = f"({result.command_s or 0:.1f} s)"
    summary = result.summary
    if summary is None:  # the verdict shows the whole error, once
        return f"{result.status} {took}" if result.error else f"{result.status}: {result.reason} {took}"
    shares = " + ".join(str(number) for number in summary.samples_by_rank)
    words = [f"from step {summary.first_step} on"] if summary.first_step > 1 else []  # a resume
    words += [counted(summary.num_steps, "step"), f"{shares} samples"]
    if summary.loss is not None:
        words.append(f"loss {summary.loss:.6g}")
    words.append(f"weights {summary.weights[:_DIGITS]}")
    if result.difference is not None:
        words.append(f"DIFFERS in {result.difference.place}")
    elif not summary.learned:
        words.append("NOTHING LEARNED")
    elif verification.reference is not result:
        words.append("the same")
    return f"{', '.join(words)} {took}"


def outcome_of_one_device(verification: Verification) -> str:
    """How the gradient of the first batch compares with that of one device, in one line."""
    result = verification.one_device
    assert result is not None
    if result.status == "same":
        return f"the same gradient of the first batch, up to rounding ({result.error:.1e} of its norm){_mode(verification)}"
    if result.status == "sum":
        return f"the gradient of the first batch is {result.factor:.4g} TIMES SMALLER"
    if result.status == "differs":
        return f"the gradient of the first batch DIFFERS by {result.error:.2g} of its norm"
    return f"{result.status}: {result.reason}"


def _mode(verification: Verification) -> str:
    summary = verification.reference.summary
    if summary is None or not (summary.batch_norm or summary.dropout):
        return ""
    modes = ["with BatchNorm in evaluation mode"] * summary.batch_norm + ["without dropout"] * summary.dropout
    return f", computed {' and '.join(modes)}"


def notes(verification: Verification) -> Iterator[str]:
    """What the first run has shown of the script, as lines: it is true in all settings."""
    summary, shards = verification.reference.summary, verification.shards
    if summary is None:
        return
    if verification.is_shards_chosen:
        yield (
            f"V = {counted(shards, 'shard')}, chosen by this command because the script sets none. Without --shards, a run has "
            f"one shard per process, so its results depend on the number of processes. Set join(shards={shards})"
        )
    elif verification.task.shards is None:
        yield f"V = {counted(shards, 'shard')}, as in the script"


def verdict(verification: Verification) -> list[str]:
    """The last lines: PASS, or FAIL with what differs first and why."""
    if verification.verdict == "interrupted":
        return ["interrupted; no verdict"]
    if verification.passed:
        return [*_passed(verification), *_not_verified(verification)]
    lines = [*_failed_settings(verification), *_difference(verification), *_one_device(verification)]
    return lines or [
        "FAIL  nothing was learned: no weight changed in any step",
        "  likely cause: a learning rate of 0, no call of optimizer.step(), or an optimizer with other parameters",
    ]


def _passed(verification: Verification) -> Iterator[str]:
    summary = verification.reference.summary
    assert summary is not None
    once = {result.summary.each_sample_once for result in verification.results if result.summary is not None}
    use = "each sample used once per epoch" if once == {True} else "the sampler draws samples more than once per epoch"
    yield (
        f"PASS  {counted(len(verification.results), 'setting')}, {counted(summary.num_steps, 'step')}, "
        f"{counted(sum(summary.samples_by_rank), 'sample')}: weights {summary.weights}{'' if None in once else f'  ({use})'}"
    )


def _not_verified(verification: Verification) -> Iterator[str]:
    skipped = [f"{result.setting.label}: {result.reason}" for result in verification.results if result.status == "skipped"]
    summary = verification.reference.summary
    if summary is not None and not summary.num_evaluations:
        skipped.append("evaluation: the script does not call team.evaluate()")
    one_device = verification.one_device
    if one_device is not None and one_device.status == "skipped":
        skipped.append(f"{one_device.shards} shards against one device: {one_device.reason}")
    if skipped:
        yield "not verified:"
        yield from indented(2, skipped)


def _failed_settings(verification: Verification) -> Iterator[str]:
    for result in verification.results:
        if result.status not in ("ok", "skipped", "interrupted", "not run"):
            where = f" ({verification.directory / result.log})" if result.log else ""
            yield f"FAIL  {result.setting.label}: {result.status}{'' if result.error else f': {result.reason}'}{where}"
            yield from indented(2, result.error.splitlines())
            yield from indented(2, findings_under("found in the script's text", verification.findings_on(result)))


def _one_device(verification: Verification) -> Iterator[str]:
    result = verification.one_device
    if result is None or not result.is_bad:
        return
    yield f"FAIL  {result.shards} shards against one device: {outcome_of_one_device(verification)}"
    if result.status == "sum":
        yield "  likely cause: a loss that is summed over the samples, while lockstep averages over the shards"
        yield '  remedy: team.backward(loss, reduction="sum"), or use the mean over the samples'
        return
    yield (
        "  likely cause: a loss over the global batch, in which a sample's value depends on the other samples (negatives of a "
        "contrastive loss, a mean or normalization over the batch): a shard has fewer of them. Or a mean over something other "
        "than samples, for example tokens"
    )
    yield (
        "  remedy: for a mean over tokens, team.backward(loss, weight=number of tokens). If the loss needs the global batch: "
        "docs/how-to/contrastive.md, --shards 1, or --no-one-device to accept results that depend on V"
    )


def _difference(verification: Verification) -> Iterator[str]:
    worst = verification.worst
    if worst is None or worst.difference is None:
        return
    first, *others = describe_difference(
        worst.difference, reference=verification.reference.setting.label, label=worst.setting.label
    )
    yield f"FAIL  {first}"
    yield from others
    if verification.diagnosis is not None:
        yield from describe_diagnosis(verification.diagnosis, verification.findings_on(worst))
