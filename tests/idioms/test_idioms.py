"""Ordinary training idioms, each with a promise that is kept: equal to the bit, refused with words,
or documented."""

import inspect
import os
import re

import pitfalls
import pytest
import running
from refusing import TEXT
from running import differences
from table import ROWS, TOPICS
from topics.promises import Differs, Equal, Refused

SHARDS = (4, 6)
WORLDS = {4: (1, 2, 3, 4), 6: (1, 4)}  # with 6 shards ranks have one or two
# In CI, each on 1 process and on one other number of them, by turns; the others are left to make
# test-longest.
BY_TURNS = (2, 3, 2, 2)
LEFT_OVER = tuple(tuple(nproc for nproc in WORLDS[4] if nproc != turn) for turn in BY_TURNS)

pytestmark = pytest.mark.timeout(120)


def rows_of(kind, **wanted):
    return [row for row in ROWS if isinstance(row.promise, kind) and all(getattr(row, k) == v for k, v in wanted.items())]


def every(number, count):
    """Some of the idioms that are promised to be equal."""
    return rows_of(Equal)[number::count]


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def results(crew, known):
    """``results(rows, nproc, shards)``: for each row's name what it came to on each rank, of tests
    before this one too."""

    def run(rows, nproc, shards, is_plain=False):
        names = [row.name for row in rows]
        found = known.setdefault((nproc, shards, is_plain), {})
        if new := [name for name in names if name not in found]:
            folder = f"{'plain' if is_plain else 'team'}-{shards}-{nproc}"
            by_rank = crew(nproc, running.run, new, nproc, folder, is_plain, shards=shards, timeout_s=20.0)
            found.update({name: [outcomes[name] for outcomes in by_rank] for name in new})
        return {name: found[name] for name in names}

    return run


def assert_equal(results, rows, shards, worlds):
    alone = {}
    wrong = []
    for nproc in worlds:
        for name, by_rank in results(rows, nproc, shards).items():
            reference = alone.setdefault(name, by_rank[0])
            for rank, found in enumerate(by_rank):
                where = f"{name}, {shards} shards, rank {rank} of {nproc}"
                if found.error:
                    wrong.append(f"{where}: {found.error}")
                elif not found.num_tensors or not found.is_finite:
                    wrong.append(f"{where}: results without tensors, or with NaN, show nothing")
                elif differences(reference, found):
                    wrong.append(f"{where}: differs at {differences(reference, found)[:5]}")
    assert not wrong, "\n".join(wrong)


def test_the_idioms_are_many_and_each_has_a_name_of_its_own():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert len(rows_of(Equal)) >= 100


def test_every_function_of_a_topic_that_is_given_only_a_team_has_a_promise():
    """One without would run in no test."""
    promised = {row.function for row in ROWS}
    forgotten = [
        f"{name}.{function.__name__}"
        for name, module in TOPICS.items()
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__
        if [*inspect.signature(function).parameters] in (["team"], ["join"]) and function not in promised
    ]
    assert forgotten == []


def test_every_idiom_says_in_one_line_what_it_does():
    for row in ROWS:
        assert re.fullmatch(r"[A-Z`.].*\.", row.function.__doc__), row.name


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    ("shards", "worlds"),
    [
        pytest.param(SHARDS[0], [(1, turn) for turn in BY_TURNS], id="4"),
        pytest.param(SHARDS[0], LEFT_OVER, id="4, the others", marks=pytest.mark.longest),
        pytest.param(SHARDS[1], (WORLDS[6],) * 4, id="6", marks=pytest.mark.longest),
    ],
)
def test_each_idiom_is_equal_to_the_bit_on_every_rank_of_every_number_of_processes(results, shards, worlds, number):
    assert_equal(results, every(number, 4), shards, worlds[number])


def test_idioms_on_one_process_with_one_shard_are_equal_to_the_plain_loop(results):
    rows = [row for row in rows_of(Equal) if row.promise.plain]
    ours, plain = results(rows, 1, 1), results(rows, 1, 1, True)
    wrong = {}
    for row in rows:
        [mine], [theirs] = ours[row.name], plain[row.name]
        assert (mine.error, theirs.error) == ("", ""), row.name
        if differences(mine, theirs):
            wrong[row.name] = differences(mine, theirs)
    assert wrong == {}


# In CI, two processes try a third, and all that one process cannot tell.
@pytest.mark.parametrize(
    ("nproc", "one_in"), [(1, 1), (2, 3), *(pytest.param(nproc, 1, marks=pytest.mark.longest) for nproc in (2, 3, 4))]
)
def test_what_cannot_be_equal_is_refused_with_words(results, nproc, one_in):
    shards = SHARDS[nproc % 2]
    rows = [row for number, row in enumerate(rows_of(Refused)) if number % one_in == 0 or not row.promise.alone]
    wrong = []
    for row, by_rank in zip(rows, results(rows, nproc, shards).values(), strict=True):
        promise, errors = row.promise, [outcome.error for outcome in by_rank]
        if not promise.alone and nproc == 1:
            holds = not errors[0]
        else:  # where one rank is refused, others may see nothing but that it is gone
            holds = all(errors) and any(f"[{promise.code}]" in error and promise.names in error for error in errors)
        if not holds:
            wrong.append(f"{row.name}: {errors}")
    assert not wrong, "\n".join(wrong)


def test_what_is_documented_to_differ_runs_and_differs(results):
    rows = rows_of(Differs)
    alone = results(rows, 1, 4)
    assert [outcome.error for by_rank in alone.values() for outcome in by_rank] == [""] * len(rows)
    for nproc in WORLDS[4][:0:-1]:  # until each has differed somewhere
        several = results(rows, nproc, 4)
        rows = [row for row in rows if not any(differences(alone[row.name][0], outcome) for outcome in several[row.name])]
        if not rows:
            break
    assert [row.name for row in rows] == [], "they do not differ any more"


@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=[pytest.mark.longest, pytest.mark.timeout(300)])])
def test_what_an_idiom_does_that_is_equal_is_taken_for_no_fault(crew, one_in):
    """But what starts over in a run that resumes, which reading the script finds, too."""
    rows = [row for row in rows_of(Equal) if not (row.found or "").startswith("LS2")]
    [said] = crew(1, running.watch, [row.name for row in rows[::one_in]], "watched", shards=SHARDS[0])
    assert {name: lines for name, lines in said.items() if lines} == {}


def test_the_pages_of_idioms_are_what_the_table_says():
    for page, text in pitfalls.PAGES.items():
        assert page.read_text() == text(), f"{os.path.relpath(page)} is not up to date: run python tests/idioms/pitfalls.py"


@pytest.mark.longest
@pytest.mark.timeout(600)
def test_no_idiom_uses_an_operation_that_gpus_refuse(crew):
    names = [row.name for row in rows_of(Equal)]
    [outcomes] = crew(1, running.run_refusing, names, "refusing", shards=4)
    assert {name: outcome.error for name, outcome in outcomes.items() if TEXT in outcome.error} == {}
    # Some of the others look at what PyTorch dispatches, which this does as well.
    assert sum(not outcome.error for outcome in outcomes.values()) >= 0.7 * len(names)
