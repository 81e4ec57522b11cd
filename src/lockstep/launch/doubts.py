"""Warnings about command lines of ``lockstep run`` that are probably mistakes, before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from lockstep.base.option import MACHINES, PROCESSES, options_of
from lockstep.launch.options import LaunchOptions
from lockstep.launch.source import Source
from lockstep.launch.spec import Script

OF_RUNS = ("--shards", "--run-dir", "--checkpoint-every", "--fresh")
"""Settings of runs that hardly any script has an option for."""


def doubts(script: Script, source: Source | None, *, are_several: bool) -> Iterator[str]:
    """Yield warnings for the user. ``are_several``: whether several processes are started, here or elsewhere."""
    if source is None:
        return
    for name, words in misplaced(script.args, _of_run()):
        if not source.has_option(name.lstrip("-")):
            yield (
                f"WARNING: {name} comes after {script.target}, so it goes to the script, in which there is no such option. "
                f"Options of lockstep run come before the script: lockstep run {words} {script.target} ..."
            )
    if are_several and script.starter is None and source.trains_alone():
        yield (
            f"WARNING: {script.target} calls neither lockstep.join() nor anything else that would make its processes one "
            f"training: each trains a model of its own, on the same data, and writes the same files. "
            "`lockstep new` writes a script that joins; --nproc-per-node 1 trains once"
        )


def _of_run() -> set[str]:
    """Options of ``lockstep run`` that hardly any script has."""
    names = set(OF_RUNS)
    for field, option in options_of(LaunchOptions).items():
        if option.group in (PROCESSES, MACHINES):
            names.update(option.names or (f"--{field.replace('_', '-')}",))
    return {name for name in names if name.startswith("--")}


def misplaced(args: Sequence[str], ours: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield those among a script's arguments that are options of a command: the name, and how it was given, with the argument
    behind it that may be its value. ``ours``: the command's options."""
    before_dashes, seen = args[: args.index("--") if "--" in args else None], set[str]()
    for arg, following in zip(before_dashes, (*before_dashes[1:], "-"), strict=False):
        given, equals, _ = arg.partition("=")
        name = given.replace("_", "-")
        if name in ours and name not in seen:
            seen.add(name)
            yield given, arg if equals or following.startswith("-") else f"{arg} {following}"
