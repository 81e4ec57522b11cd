"""What the reading finds: one finding is one name at one line, with the line to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lockstep._base.config import all_settings
from lockstep._base.nondeterministic_operations import by_name


def join_arguments() -> list[str]:
    """The names of the arguments of ``lockstep.join``."""
    return [*all_settings(), "rank", "world_size"]


def _argument_meant(name: str) -> str:
    """The argument of ``lockstep.join`` that is most like an unknown one, as text."""
    near = difflib.get_close_matches(name, join_arguments(), n=1)
    return f"{near[0]}=..., or another" if near else "one"


@dataclass(frozen=True)
class Rule:
    """The words of a kind of finding. ``{name}`` stands for the name in the script, ``{read}`` for
    the place that reads it."""

    message: str
    remedy: str
    of_object: str = ""
    """The remedy for an object of a class of the script (``{cls}``) that one of its methods
    (``{call}``) changes; empty: ``remedy``."""


DIFFERS, RESTARTS, RAISES_ON_GPU = "LS1", "LS2", "LS4"
"""The families of codes: results that depend on the number of processes, values that a resume
resets, and errors on a GPU. (LS3: code in the wrong place.)"""

RULES = {
    "LS101": Rule(
        "`{name}` has the value of this process's last shard{read}",
        'inside: batch.add({short}={short}); outside: batch["{short}"]',
    ),
    "LS102": Rule(
        "`{name}` counts only this process's shards{read}",
        'inside: batch.add({short}=...), averaged over the global batch; outside: batch["{short}"]. For a sum: '
        "team.all_reduce(torch.tensor({name})), outside",
    ),
    "LS103": Rule(
        "`{name}` collects only this process's shards{read}",
        "inside: collect in a new list, found; outside: for part in team.all_gather_object(found): ...",
        'inside: batch.add(...); outside: {call}(...) with the value of batch["..."], the mean over the global batch',
    ),
    "LS104": Rule(
        "`{name}` is overwritten once per shard of this process{read}",
        "set it outside (team.step counts steps), or make it a buffer, which lockstep combines over the shards: "
        'self.register_buffer("{short}", ...)',
    ),
    "LS105": Rule(
        "`{name}` keeps its state from shard to shard, so its numbers depend on which shards this process runs{read}",
        "draw from torch, numpy.random or random, which lockstep reseeds for each shard; or draw outside",
    ),
    "LS106": Rule(
        "`{name}` is changed once per shard of this process{read}",
        "move it outside of batch.shards, after optimizer.step()",
    ),
    "LS107": Rule(
        "`{name}` counts iterations of this process only{read}",
        "use a value that is equal on all processes: team.step, batch.num_samples, or a column of the data",
    ),
    "LS109": Rule(
        "`{name}` is separate in each process and loader worker{read}",
        "compute it from the sample's index, or fill it before the loop, on all ranks",
    ),
    "LS110": Rule(
        "the running statistics of `{name}` depend on which shards this process runs{read}",
        "{name} = team.prepare({name}), or {name}.eval()",
    ),
    "LS111": Rule(
        "the item that `{name}` yields depends on which shards this process ran before{read}",
        "prepare that loader too, and loop over zip(batch.shards, other.shards); or call next() outside",
    ),
    "LS112": Rule(
        "`{name}` changes with the number of processes{read}",
        "remove it: the batch size in the script is the global one, so nothing has to be scaled",
    ),
    "LS113": Rule(
        "`{name}` is changed in place in the dataset; other processes, loader workers and resumed runs lack the change",
        "change a copy: {whole} = copy.deepcopy({copied}) first; or make a new value under a new name",
    ),
    "LS201": Rule(
        "`{name}` is in no checkpoint, so a resume resets it{read}",
        "state = team.state({short}=...) before the loop, then state.{short}",
    ),
    "LS202": Rule(
        "`{name}` restarts at its first value on a resume{read}",
        "use team.step, which continues",
    ),
    "LS203": Rule(
        "`{name}` is in no checkpoint, so a resume resets it{read}",
        'team.register("{short}", {name})',
        'team.register("{short}", {name}), with state_dict() and load_state_dict() in {cls}; or keep it in team.state()',
    ),
    "LS204": Rule(
        "`{name}` is in no checkpoint, so a resume resets it{read}",
        "{name} = team.prepare({name})",
    ),
    "LS205": Rule(
        "`{name}` is in no checkpoint, so a resume resets it{read}",
        'team.register("{short}", {name})',
    ),
    "LS206": Rule(
        "`{name}` is in no checkpoint, so a resume starts it again{read}",
        "prepare its loader, so that its position is saved",
    ),
    "LS207": Rule(
        "`{name}` restarts at its first value on a resume, so the interrupted pass gets too many steps",
        "for batch in loader.take(n): it also counts the steps before the resume",
    ),
    "LS208": Rule(
        "`{name}` restarts at its first value on a resume, while the epoch next to it continues{read}",
        "use the value that team.epochs(n) yields, which continues: rates[epoch] for zip(team.epochs(n), rates), epoch for the "
        "number of enumerate()",
    ),
    "LS304": Rule(
        "`{name}` is made before lockstep.join(), so its initial weights do not depend on the run's seed and differ in each "
        "launch",
        "move lockstep.join() above it, or call torch.manual_seed(...) first",
    ),
    "LS305": Rule(
        "lockstep.join() has no argument `{name}` and refuses it",
        "{meant} of the arguments that `lockstep run --help` lists",
    ),
    "LS401": Rule(
        "`{name}` raises an error on a GPU, where PyTorch has no deterministic kernel for {operation}",
        "{instead}, for {instead_of}{note}",
    ),
}
"""What each code means and what to write instead, in the words of a finding. The page
``docs/check-codes.md`` is generated from it, with reasons and examples
(``tests/tools/check/codes_page.py``)."""


_GATHERED = "`{name}` covers only this process's shards{read}"
_BY_WAY = {
    ("LS102", "max"): Rule(_GATHERED, 'outside: team.all_reduce(torch.tensor({name}), op="max"), or team.any({name} > ...)'),
    ("LS102", "min"): Rule(_GATHERED, 'outside: team.all_reduce(torch.tensor({name}), op="min"), or team.any({name} < ...)'),
    ("LS102", "or"): Rule(_GATHERED, "outside: {name} = team.any({name})"),
    ("LS102", "and"): Rule(_GATHERED, "outside: {name} = not team.any(not {name})"),
    ("LS103", "cache"): Rule(
        "the cache of `{name}` keeps the random numbers of this process's first shard{read}",
        "fill it before the loop, on all ranks; or draw without the cache",
    ),
    ("LS110", "buffer"): Rule(
        "a buffer of `{name}` depends on which shards this process runs{read}",
        "{name} = team.prepare({name})",
    ),
    ("LS113", "batch"): Rule(
        "`{name}` is changed in place, and the dataset keeps the change where batches stay on the CPU; other processes and "
        "resumed runs lack it",
        "change a copy: {whole} = copy.deepcopy({copied}) at the start of the loop over batch.shards; or make a new value "
        "under a new name",
    ),
    ("LS201", "given"): Rule(
        RULES["LS201"].message,
        "set it before it is used, at the start of the epoch or step: from epoch or team.step, or {name} = state.{short}, with "
        "state = team.state({short}=...) before the loop",
    ),
    ("LS203", "left out"): Rule(
        "`{name}` is in no checkpoint, so a resume resets it{read}: its object is registered, but state_dict() leaves it out",
        "put {short} into its state_dict() and load_state_dict()",
    ),
    ("LS203", "optimizer"): Rule(
        RULES["LS203"].message,
        "keep it in self.state, or in an attribute that is a number, a tensor, a generator, or a list or dict of them",
    ),
    ("LS203", "cache"): Rule(
        "the cache of `{name}` is in no checkpoint, so a resume draws other random numbers{read}",
        "fill it before the loop; or draw without the cache",
    ),
    ("LS207", "next"): Rule(
        "`{name}` restarts at its first value on a resume, so the run gets too many steps",
        "while team.step < n: it also counts the steps before the resume",
    ),
}
"""The words for a code and a way of changing the name (``Site.how``) that need other words."""


@dataclass(frozen=True)
class Finding:
    """One finding. Lines count from 1, columns from 1."""

    code: str
    path: str
    line: int
    column: int
    name: str
    """The name in the script."""
    message: str
    remedy: str
    """The code to write instead."""

    @property
    def differs(self) -> bool:
        """Whether results depend on the number of processes."""
        return self.code.startswith(DIFFERS)

    @property
    def restarts_on_resume(self) -> bool:
        """Whether a resume resets the value."""
        return self.code.startswith(RESTARTS)

    @property
    def raises_on_gpu(self) -> bool:
        """Whether the code raises an error on a GPU, and only there."""
        return self.code.startswith(RAISES_ON_GPU)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code} {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)


def make(
    code: str,
    path: str,
    line: int,
    column: int,
    name: str,
    *,
    how: str = "",
    method: str = "",
    read: str = "",
    whole: str = "",
) -> Finding:
    """A finding, in the words of its rule.

    Args:
        how: the way in which the name is changed (``Site.how``); of LS401, the operation.
        method: the method that changes an object (``Site.method``).
        read: the place that reads it, as ``line 7``; empty: unknown.
        whole: the names of the values of which the name is a part.
    """
    rule = _BY_WAY.get((code, how)) or RULES[code]
    short = name.rpartition(".")[2] or name
    cls, _, called = method.partition(".")
    call = name if called == "__call__" else f"{name}.{called}"
    words = {
        "name": name,
        "whole": whole,
        "copied": f"({whole})" if "," in whole else whole,
        "short": short,
        "meant": _argument_meant(name) if code == "LS305" else "",
        "cls": cls,
        "call": call,
        "read": f", and is read {read}" if read else "",
    }
    if code == "LS401":
        operation = by_name(how)
        note = f" ({operation.note})" if operation.note else ""
        words |= {"operation": how, "instead": operation.instead, "instead_of": operation.call, "note": note}
    message = rule.message.format(**words)
    if method:
        message = message.replace(f"`{name}`", f"`{name}` ({cls}, changed by `{call}()`)", 1)
    remedy = (rule.of_object if method else "") or rule.remedy
    return Finding(code, path, line, column, name, message, remedy.format(**words))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings sorted by path, line and column."""
    return sorted(findings, key=lambda f: (f.path, f.line, f.column, f.code))
