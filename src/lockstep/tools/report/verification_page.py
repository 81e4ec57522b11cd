"""The report on a verification. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from lockstep.tools.report import training
from lockstep.tools.report.chart import Table
from lockstep.tools.report.html import Page, Section
from lockstep.tools.report.study import machine_facts
from lockstep.tools.verify import verdict
from lockstep.tools.verify.verification import SettingResult, Verification
from lockstep.world.machine.sizes import NOTHING, counted

_TONES = {"pass": "good", "fail": "bad", "interrupted": "warn"}
_DIGITS = 16
_MOST_SAMPLES = 24


def verification_page(verification: Verification, histories: Mapping[int, training.Events], version: str) -> Page:
    """The page of a verification, with the histories of its runs by the setting's number, and the version of this lockstep."""
    outcome = verification.verdict
    sections = (
        _difference(verification),
        _settings(verification),
        _curves(verification, histories),
        Section(
            title="Settings that failed",
            quotes=[
                (f"{result.setting.label}, {result.log}", result.error) for result in verification.results if result.error
            ],
        ),
        Section(title="Settings and surroundings", facts=machine_facts(verification), tables=[_commands(verification)]),
    )
    return Page(
        kind="verification",
        name=Path(str(verification.task.script)).name,
        state=outcome.upper(),
        tone=_TONES[outcome],
        command=shlex.join(verification.task.command),
        summary=_summary(verification),
        tiles=tuple(_tiles(verification)),
        sections=sections,
        place=str(verification.directory.absolute()),
        version=version,
    )


def _summary(verification: Verification) -> str:
    num = counted(len(verification.results), "setting")
    if verification.passed:
        return f"In {num} the script computed the same, to the last bit of every weight, in every step."
    if verification.is_interrupted:
        return "The verification was interrupted: no verdict."
    worst = verification.worst
    if worst is not None and worst.difference is not None:
        against = "" if worst.difference.among is not None else f" than under {verification.reference.setting.label}"
        return f"Under {worst.setting.label} the script computed something else{against}."
    return "The script failed in a setting, or did not learn what it should: see below."


def _tiles(verification: Verification) -> Iterator[tuple[str, str, str]]:
    results = verification.results
    ran = [result for result in results if result.status == "ok"]
    yield "settings", str(len(results)), f"{sum(result.passed for result in results)} passed"
    summary = verification.reference.summary
    if summary is not None:
        yield "steps", f"{summary.num_steps:,}", f"{sum(summary.samples_by_rank):,} samples"
        yield "weights", summary.weights[:8], f"digest, under {verification.reference.setting.label}"
    yield "shards", str(verification.shards), "in every setting"
    yield "time", f"{sum(result.command_s or 0 for result in ran):.0f} s", counted(len(ran), "run")


def _difference(verification: Verification) -> Section:
    if verification.passed or verification.is_interrupted:
        skipped = verdict.verdict(verification)[1:]
        return Section(title="Not verified", remarks=[line.strip() for line in skipped[1:]])
    story = list(_story(verification))
    # What the story does not tell: nothing was learned, or one device computes something else.
    text = "" if story else "\n".join(verdict.verdict(verification))
    quotes = [("As lockstep verify says it", text)] if text else []
    return Section(title="The first difference" if story else "What is wrong", story=story, quotes=quotes)


def _story(verification: Verification) -> Iterator[tuple[str, str]]:
    worst, diagnosis = verification.worst, verification.diagnosis
    if worst is None or worst.difference is None:
        return
    difference = worst.difference
    yield "where", verdict.place_of(difference)
    names = difference.among or (verification.reference.setting.label, worst.setting.label)
    yield from ((name, value) for name, value in zip(names, difference.values, strict=True) if value)
    if difference.detail and difference.among is None:
        yield "what", difference.detail
    if difference.samples:
        yield "samples of this shard", verdict.samples_of(difference, most=_MOST_SAMPLES)
    if diagnosis is not None:
        facts = {
            "it arose": diagnosis.arose,
            "likely cause": diagnosis.sentence,
            "remedy": diagnosis.remedy,
            "ruled out": "\n".join(diagnosis.ruled_out),
        }
        yield from ((name, text) for name, text in facts.items() if text)
    if findings := verification.findings_on(worst):
        yield "found in the script's text", "\n".join(verdict.findings_of_text(findings))
    if verification.experiments:
        yield "what was run to find it", "\n".join(verification.experiments)


def _settings(verification: Verification) -> Section:
    rows, tones = [], []
    for result in verification.results:
        rows.append(_cells(verification, result))
        tones.append("" if result.passed and result.status == "ok" else "dim" if result.passed else "bad")
    headings = ("", "setting", "verdict", "steps", "samples by rank", "loss", "weights", "took")
    table = Table(headings=headings, rows=rows, numbers=frozenset({0, 3, 5, 7}), tones=tones)
    one_device = verification.one_device
    text = (
        ""
        if one_device is None
        else f"{one_device.shards} shards against one device: {verdict.outcome_of_one_device(verification)}."
    )
    return Section(title="Settings", tables=[table], text=text)


def _curves(verification: Verification, histories: Mapping[int, training.Events]) -> Section:
    runs = [(result.setting.label, histories.get(result.setting.number, ())) for result in verification.results]
    note = "Settings that computed the same lie on one another. A dashed line: a run was killed, and resumed from there."
    return Section(title="What each setting computed", pictures=training.overlaid(runs, note=note))


def _cells(verification: Verification, result: SettingResult) -> tuple[str, ...]:
    summary, setting = result.summary, result.setting
    if result.difference is not None:
        word = "DIFFERS"
    elif summary is not None and not summary.learned:
        word = "NOTHING LEARNED"
    elif result.status == "ok":
        word = "reference" if result is verification.reference else "the same"
    else:
        word = result.status if result.error or not result.reason else f"{result.status}: {result.reason}"
    measured = [NOTHING] * 4
    if summary is not None:
        loss = NOTHING if summary.loss is None else f"{summary.loss:.6g}"
        samples = " + ".join(map(str, summary.samples_by_rank))
        measured = [str(summary.num_steps), samples, loss, summary.weights[:_DIGITS]]
    took = NOTHING if result.command_s is None else f"{result.command_s:.1f} s"
    return (str(setting.number), setting.label, word, *measured, took)


def _commands(verification: Verification) -> Table:
    rows = [(result.setting.label, shlex.join(result.command)) for result in verification.results if result.command]
    return Table(headings=("setting", "command"), rows=rows, folded_under="Commands, as they were run")
