"""What the reading finds: one finding is one name at one line, with the line to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from lockstep._base.config import all_settings


def join_arguments() -> list[str]:
    """The names of the arguments of ``lockstep.join``."""
    return [*all_settings(), "rank", "world_size"]


def _argument_meant(name: str) -> str:
    """Which argument of ``lockstep.join`` is like an unknown one, in words."""
    near = difflib.get_close_matches(name, join_arguments(), n=1)
    return f"{near[0]}=..., or another" if near else "one"


@dataclass(frozen=True)
class Rule:
    """A kind of finding. ``{name}`` stands for what the script calls it, ``{read}`` for the place
    that reads it."""

    message: str
    remedy: str
    of_object: str = ""
    """The remedy where it is an object of a class of the script (``{cls}``), changed by one of its
    methods (``{call}``)."""


DIFFERS, RESTARTS = "LS1", "LS2"
"""The families of codes: another answer on another number of processes; after a resume. (LS3: in
the wrong place.)"""

RULES = {
    "LS101": Rule(
        "`{name}` is that of the last shard of this process{read}",
        'inside: batch.add({short}={short}); outside: batch["{short}"]',
    ),
    "LS102": Rule(
        "`{name}` counts the shards of this process only{read}",
        'inside: batch.add({short}=...), a mean over the global batch; outside: batch["{short}"]. A sum: '
        "team.all_reduce(torch.tensor({name})), outside",
    ),
    "LS103": Rule(
        "`{name}` gets what the shards of this process put into it{read}",
        "collect inside in a new list, and write outside, of all ranks: for part in team.all_gather_object(found): ...",
        'inside: batch.add(...); outside: {call}(...) with what batch["..."] is then, the mean over the global batch',
    ),
    "LS104": Rule(
        "`{name}` is set once a shard of this process{read}",
        "set it outside (team.step counts steps), or make it a buffer, which is combined over the shards: "
        'self.register_buffer("{short}", ...)',
    ),
    "LS105": Rule(
        "`{name}` runs on from shard to shard of this process{read}",
        "draw from torch, numpy.random or random, which lockstep reseeds for each shard; or draw outside",
    ),
    "LS106": Rule(
        "`{name}` is changed once a shard of this process{read}",
        "move it outside of batch.shards, after optimizer.step()",
    ),
    "LS107": Rule(
        "`{name}` counts what this process alone runs through{read}",
        "use a value that all processes share: team.step, batch.num_samples, or a column of the data",
    ),
    "LS109": Rule(
        "`{name}` is separate in each process and loader worker{read}",
        "compute it from the sample's index, or fill it before the loop, on all ranks",
    ),
    "LS110": Rule(
        "the running statistics of `{name}` follow the shards of this process{read}",
        "{name} = team.prepare({name}), or {name}.eval()",
    ),
    "LS111": Rule(
        "which item `{name}` yields follows from the shards before it on this process{read}",
        "prepare that loader too, and run over zip(batch.shards, other.shards); or call next() outside",
    ),
    "LS112": Rule(
        "`{name}` changes with the number of processes{read}",
        "leave it out: the batch size in the script is the global one, so nothing has to be scaled",
    ),
    "LS113": Rule(
        "`{name}` is changed in place, and the data set keeps it: other processes and loader workers, and resumed runs, do not",
        "change a copy: {whole} = copy.deepcopy({copied}) first; or make a new value under a new name",
    ),
    "LS201": Rule(
        "`{name}` starts over on a resume{read}",
        "state = team.state({short}=...) before the loop, then state.{short}",
    ),
    "LS202": Rule(
        "`{name}` counts from its start again on a resume{read}",
        "use team.step, which continues",
    ),
    "LS203": Rule(
        "`{name}` starts over on a resume{read}",
        'team.register("{short}", {name})',
        'team.register("{short}", {name}), with state_dict() and load_state_dict() in {cls}; or keep it in team.state()',
    ),
    "LS204": Rule(
        "`{name}` starts over on a resume{read}",
        "{name} = team.prepare({name})",
    ),
    "LS205": Rule(
        "`{name}` starts over on a resume{read}",
        'team.register("{short}", {name})',
    ),
    "LS206": Rule(
        "`{name}` starts over on a resume{read}",
        "prepare its loader: then its position is saved",
    ),
    "LS207": Rule(
        "`{name}` counts from its start again on a resume, so that the interrupted pass gets too many steps",
        "for batch in loader.take(n): it counts the steps from before, too",
    ),
    "LS208": Rule(
        "`{name}` comes from its beginning again on a resume, beside an epoch that goes on{read}",
        "use what team.epochs(n) yields, which goes on: rates[epoch] for zip(team.epochs(n), rates), epoch for the number of "
        "enumerate()",
    ),
    "LS304": Rule(
        "`{name}` is made before lockstep.join(): its initial weights do not follow from the run's seed, and differ in each "
        "launch",
        "move lockstep.join() above it, or call torch.manual_seed(...) first",
    ),
    "LS305": Rule(
        "`{name}` is no argument of lockstep.join(), which refuses it",
        "{meant} of those that `lockstep run --help` lists",
    ),
}


_GATHERED = "`{name}` is that of the shards of this process only{read}"
_BY_WAY = {
    ("LS102", "max"): Rule(_GATHERED, 'outside: team.all_reduce(torch.tensor({name}), op="max"), or team.any({name} > ...)'),
    ("LS102", "min"): Rule(_GATHERED, 'outside: team.all_reduce(torch.tensor({name}), op="min"), or team.any({name} < ...)'),
    ("LS102", "or"): Rule(_GATHERED, "outside: {name} = team.any({name})"),
    ("LS102", "and"): Rule(_GATHERED, "outside: {name} = not team.any(not {name})"),
    ("LS103", "cache"): Rule(
        "the cache of `{name}` keeps what the first shard of this process has drawn{read}",
        "fill it before the loop, on all ranks; or draw without the cache",
    ),
    ("LS110", "buffer"): Rule(
        "a buffer of `{name}` follows the shards of this process{read}",
        "{name} = team.prepare({name})",
    ),
    ("LS113", "batch"): Rule(
        "`{name}` is changed in place, and the data set keeps the change where batches stay on the CPU: no other process or "
        "resumed run has it",
        "change a copy: {whole} = copy.deepcopy({copied}) at the start of the loop over batch.shards; or make a new value "
        "under a new name",
    ),
    ("LS201", "given"): Rule(
        RULES["LS201"].message,
        "set it before it is used, at the start of the epoch or step: from epoch or team.step, or {name} = state.{short}, with "
        "state = team.state({short}=...) before the loop",
    ),
    ("LS203", "left out"): Rule(
        "`{name}` starts over on a resume{read}: its object is registered, but state_dict() leaves it out",
        "put {short} into its state_dict() and load_state_dict()",
    ),
    ("LS203", "optimizer"): Rule(
        RULES["LS203"].message,
        "keep it in self.state, or in an attribute that is a number, a tensor, a generator, or a list or dict of them",
    ),
    ("LS203", "cache"): Rule(
        "the cache of `{name}` starts over on a resume, with other random numbers{read}",
        "fill it before the loop; or draw without the cache",
    ),
    ("LS207", "next"): Rule(
        "`{name}` counts from its start again on a resume, so that the run gets too many steps",
        "while team.step < n: it counts the steps from before, too",
    ),
}
"""What a rule says where the name was changed in one of these ways: see ``Site.how``."""


@dataclass(frozen=True)
class Finding:
    """One finding. Lines count from 1, columns from 1."""

    code: str
    path: str
    line: int
    column: int
    name: str
    """What the script calls it."""
    message: str
    remedy: str
    """What to write instead."""

    @property
    def differs(self) -> bool:
        """Whether the answer is another on another number of processes."""
        return self.code.startswith(DIFFERS)

    @property
    def restarts_on_resume(self) -> bool:
        """Whether a resumed run has lost it."""
        return self.code.startswith(RESTARTS)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code} {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """A finding in its rule's words. ``how``, ``method``: see ``Site``. ``read``: the place that
    reads it, as ``line 7``. ``whole``: the names of what the name is a part of."""
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
    message = rule.message.format(**words)
    if method:
        message = message.replace(f"`{name}`", f"`{name}` ({cls}, changed by `{call}()`)", 1)
    remedy = (rule.of_object if method else "") or rule.remedy
    return Finding(code, path, line, column, name, message, remedy.format(**words))


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """By place."""
    return sorted(findings, key=lambda f: (f.path, f.line, f.column, f.code))
