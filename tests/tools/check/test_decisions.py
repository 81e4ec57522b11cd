"""A condition of ``team.any`` is a finding exactly if its result depends on which process has which
shard. Whether it does is tried out: two shards on one process, and on two."""

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep._tools.check.reader import read_source

NUMBERS, FLAGS = ("most", "least"), ("bad", "odd", "clean", "calm")
GATHERED = {"most": max, "least": min, "bad": any, "odd": any, "clean": all, "calm": all}
"""How the values of the shards become one."""
OF_SHARDS = {**dict.fromkeys(NUMBERS, (0, 1, 2)), **dict.fromkeys(FLAGS, (False, True))}
LINES = {
    "most": ("0", "max(most, x.max().item())"),
    "least": ("9", "min(least, x.min().item())"),
    "bad": ("False", "bad or bool(x.isnan())"),
    "odd": ("False", "odd or bool(x.isinf())"),
    "clean": ("True", "clean and bool(x.isfinite())"),
    "calm": ("True", "calm and bool(x.isfinite())"),
}


def loop_with(condition):
    used = names_in(condition)
    before = "".join(f"    {name} = {LINES[name][0]}\n" for name in used)
    inside = "".join(f"        {name} = {LINES[name][1]}\n" for name in used)
    return (
        "import lockstep\nfor batch in loader:\n"
        f"{before}    for x in batch.shards:\n{inside}        team.backward(x)\n"
        f"    if team.any({condition}):\n        break\n"
    )


def names_in(condition):
    return [name for name in GATHERED if re.search(rf"\b{name}\b", condition)]


def depends_on_the_split(condition):
    used, holds = names_in(condition), compile(condition, condition, "eval")

    def on_a_process(values, step):
        # as the one-element tensors that flags often are, with their ``~``
        flags = {name: np.bool_(value) for name, value in zip(used, values, strict=True) if name in FLAGS}
        return bool(eval(holds, {"team": SimpleNamespace(step=step)}, {**dict(zip(used, values, strict=True)), **flags}))

    for step, shards in itertools.product(
        (1, 9), itertools.product(*(itertools.product(OF_SHARDS[n], repeat=2) for n in used))
    ):
        together = [GATHERED[name](values) for name, values in zip(used, shards, strict=True)]
        if any(on_a_process(values, step) for values in zip(*shards, strict=True)) != on_a_process(together, step):
            return True
    return False


def negated(conditions):
    return [f"(not {condition})" for condition in conditions]


BOUNDS = [f"{a} {sign} {b}" for name in NUMBERS for sign in ("<", "<=", ">", ">=") for a, b in ((name, 1), (1, name))]
SINGLE = [*BOUNDS, *FLAGS, "bool(bad)", "bool(clean)", "bad == odd", "most == 1", "0 < most < 2", "most > least"]
SIDES = ["most > 1", "least > 1", "bad", "clean"]
COMPUTED = [
    "-most > -1",
    "-most < -1",
    "2 - least > 1",
    "2 - least < 1",
    "most - 1 > 0",
    "3 * least < 3",
    "most - least > 1",
]
DEEP = [
    "bad or odd or most > 1",
    "bad or not (clean and calm)",
    "bad or odd and team.step > 3",
    "bad or (odd and clean)",
    "not (clean and (calm or bad))",
    "not (clean and calm and most < 2)",
    "not clean or not (calm or team.step > 3)",
    "bool(bad and odd)",
]


def both_ways(pairs, operators, negation):
    conditions = [f"{a} {operator} {b}" for (a, b), operator in itertools.product(pairs, operators)]
    return [*conditions, *(f"{negation}({condition})" for condition in conditions)]


def pairs_of(conditions):
    signed = [*conditions, *negated(conditions)]
    return [(a, b) for a, b in itertools.combinations(signed, 2) if names_in(a) != names_in(b)]


KINDS = {
    "one condition": [*SINGLE, *negated(SINGLE)],
    "one that is computed": [*COMPUTED, *negated(COMPUTED)],
    "two": both_ways(pairs_of(SIDES), ("and", "or"), "not "),
    "two of a kind": both_ways([*pairs_of(["bad", "odd"]), *pairs_of(["clean", "calm"])], ("and", "or"), "not "),
    "one beside what all processes have": both_ways(
        [(side, "team.step > 3") for side in (*SIDES, *negated(SIDES))], ("and", "or"), "not "
    ),
    "two tensors": [
        *both_ways(itertools.combinations((*FLAGS, "(most > 1)"), 2), "&|", "~"),
        *(f"~{flag}" for flag in FLAGS),
    ],
    "more": DEEP,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_is_found_exactly_if_it_depends_on_the_split(kind):
    expected = {condition: depends_on_the_split(condition) for condition in KINDS[kind]}
    found = {condition: bool(read_source(loop_with(condition))) for condition in KINDS[kind]}
    assert {each: is_found for each, is_found in found.items() if is_found != expected[each]} == {}
    assert len(set(expected.values())) == 2, "some depend, and some don't"
