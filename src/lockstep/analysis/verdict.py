"""What a verification says to a person: a line a setting, and the verdict. Pure."""

from __future__ import annotations

from lockstep.analysis.results import counted
from lockstep.analysis.verification import SettingResult, Verification, describe_samples
from lockstep.analysis.verify import Difference

_DIGITS = 16


def outcome(verification: Verification, result: SettingResult) -> str:
    """What became of a setting, in one line."""
    summary = result.summary
    if summary is None:
        return f"{result.status}: {result.reason}"
    shares = " + ".join(str(number) for number in summary.samples_by_rank)
    words = [counted(summary.num_steps, "step"), f"{shares} samples"]
    if summary.loss is not None:
        words.append(f"loss {summary.loss:.6g}")
    words.append(f"weights {summary.weights[:_DIGITS]}")
    reference = verification.reference
    if result.difference is not None:
        words.append(f"DIFFERS in {_where(result.difference)}")
    elif not summary.learned:
        words.append("NOTHING LEARNED")
    elif reference is not None and reference.setting.number != result.setting.number:
        words.append("the same")
    return ", ".join(words)


def verdict(verification: Verification) -> list[str]:
    """The last lines: PASS, or FAIL with what differs first and why."""
    if verification.verdict == "interrupted":
        return ["stopped: nothing can be said"]
    if verification.passed:
        summary = verification.results[0].summary
        assert summary is not None
        return [
            f"PASS  {counted(len(verification.results), 'setting')}, {counted(summary.num_steps, 'step')}, "
            f"{counted(sum(summary.samples_by_rank), 'sample')}: weights {summary.weights}  "
            f"({describe_samples(verification.results)})"
        ]
    lines: list[str] = []
    for result in verification.results:
        if result.status not in ("ok", "interrupted"):
            where = f" ({verification.directory / result.log})" if result.log else ""
            lines.append(f"FAIL  {result.setting.label}: {result.status}: {result.reason}{where}")
    worst, reference = verification.worst, verification.reference
    if worst is not None and worst.difference is not None and reference is not None:
        lines += _difference(worst, worst.difference, reference)
        lines += _diagnosis(verification)
    elif not lines:
        lines += [
            "FAIL  nothing was learned: no weight moved in any step",
            "  likely cause: the learning rate is 0, optimizer.step() is never called, or the optimizer has other parameters",
        ]
    return lines


def _difference(worst: SettingResult, difference: Difference, reference: SettingResult) -> list[str]:
    if difference.among is not None:
        lines = [f"FAIL  {worst.setting.label}: {difference.among[1]} differs from {difference.among[0]}"]
        names = difference.among
    elif difference.detail:
        return [f"FAIL  {worst.setting.label}: {_where(difference)}: {difference.detail}"]
    else:
        lines = [f"FAIL  {worst.setting.label} differs from {reference.setting.label}"]
        names = (reference.setting.label, worst.setting.label)
    lines.append(f"  first difference: {_where(difference)}")
    if difference.samples:
        shown = ", ".join(str(sample) for sample in difference.samples[:12])
        more = f", ... ({len(difference.samples)} in all)" if len(difference.samples) > 12 else ""
        lines.append(f"    samples of this shard: {shown}{more}")
    lines += [f"    {name}: {value}" for name, value in zip(names, difference.values, strict=True) if value]
    return lines


def _where(difference: Difference) -> str:
    """A difference's place in the run, in words."""
    place = "the beginning" if difference.step == 0 else f"step {difference.step}"
    if difference.epoch is not None:
        place += f" (epoch {difference.epoch + 1})"
    if difference.phase:  # nearly every step has but one, which needs no name
        place += f", phase {difference.phase}"
    if difference.shard is not None:
        place += f", shard {difference.shard}"
    stage = difference.detail if difference.stage == "ranks" else difference.stage
    what = _STAGES.get(stage, stage)
    return f"{place}: {what}{'' if difference.name is None else f' {difference.name}'}"


_STAGES = {
    "steps": "how many steps there are",
    "samples": "which samples are used",
    "content": "what is in the batch",
    "gradient of a shard": "the shard's gradient of",
    "gradient": "the gradient (after the exchange) of",
    "weights": "the weight",
    "buffers": "the buffer",
    "state": "the optimizer's state:",
    "evaluation": "the evaluation's",
}


def _diagnosis(verification: Verification) -> list[str]:
    found = verification.diagnosis
    if found is None:
        return []
    lines = [f"  it arose {found.arose}"] if found.arose else []
    lines.append(f"  likely cause: {found.sentence}")
    lines += [f"    {place}" for place in found.places]
    lines.append(f"  remedy: {found.remedy}")
    if found.also_seen:
        lines += ["  also seen, and perhaps innocent:", *(f"    {place}" for place in found.also_seen)]
    if found.ruled_out and found.cause in ("unknown", "timing"):
        lines += ["  ruled out:", *(f"    {text}" for text in found.ruled_out)]
    return lines
