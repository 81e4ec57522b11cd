"""Ordinary training idioms, each with a promise that is kept: equal to the bit, refused with words, or documented."""

import os

import pitfalls
import pytest
import running
from running import differences
from table import ROWS, Documented, Equal, Refused

WORLDS = (1, 2, 3, 4)
SHARDS = (4, 6)

pytestmark = pytest.mark.timeout(300)  # hundreds of trainings in one test


def rows_of(kind, **wanted):
    return [row for row in ROWS if isinstance(row.promise, kind) and all(getattr(row, k) == v for k, v in wanted.items())]


@pytest.fixture
def results(crew):
    """``results(rows, nproc, shards)``: for each row's name what it came to on each rank."""

    def run(rows, nproc, shards, function="main"):
        names = [row.name for row in rows]
        by_rank = crew(
            nproc, running.run, names, nproc, f"{function}-{shards}-{nproc}", function, shards=shards, timeout_s=20.0
        )
        return {name: [found[name] for found in by_rank] for name in names}

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


def test_the_corpus_is_large_and_every_script_has_a_row():
    scripts = sorted(path.stem for path in running.SCRIPTS.glob("*.py"))
    assert sorted(row.name for row in ROWS) == scripts
    assert len(scripts) >= 120
    assert len(rows_of(Equal)) >= 100


def test_every_script_says_in_its_first_line_what_its_row_says():
    for row in ROWS:
        first = (running.SCRIPTS / f"{row.name}.py").read_text().partition("\n")[0]
        assert first == f'"""{row.what[0].upper()}{row.what[1:]}."""', row.name


def half(number):
    """Every second script that is promised to be equal, and is light."""
    return rows_of(Equal, heavy=False)[number::2]


@pytest.mark.parametrize(("number", "shards"), list(enumerate(SHARDS)))
def test_idioms_are_equal_to_the_bit_on_every_rank_of_every_number_of_processes(results, number, shards):
    assert_equal(results, half(number), shards, WORLDS)


@pytest.mark.long
@pytest.mark.parametrize(("number", "shards"), list(enumerate(reversed(SHARDS))))
def test_idioms_are_equal_to_the_bit_with_the_other_number_of_shards_too(results, number, shards):
    assert_equal(results, half(number), shards, WORLDS)


def test_idioms_that_import_much_are_equal_to_the_bit(results):
    assert_equal(results, rows_of(Equal, heavy=True), 4, (1, 3))


def test_idioms_on_one_process_with_one_shard_are_equal_to_the_plain_loop(results):
    rows = [row for row in rows_of(Equal) if row.promise.plain]
    ours, plain = results(rows, 1, 1), results(rows, 1, 1, "plain")
    wrong = {}
    for row in rows:
        [mine], [theirs] = ours[row.name], plain[row.name]
        assert (mine.error, theirs.error) == ("", ""), row.name
        if differences(mine, theirs):
            wrong[row.name] = differences(mine, theirs)
    assert wrong == {}


@pytest.mark.parametrize("nproc", WORLDS)
def test_what_cannot_be_equal_is_refused_with_words(results, nproc):
    wrong = []
    for shards in SHARDS:
        found = results(rows_of(Refused), nproc, shards)
        for row in rows_of(Refused):
            errors = [outcome.error for outcome in found[row.name]]
            if not row.promise.alone and nproc == 1:
                if errors[0]:
                    wrong.append(f"{row.name}, {shards} shards, alone: {errors[0]}")
            elif not all(errors):
                wrong.append(f"{row.name}, {shards} shards: no error on some of {nproc} ranks: {errors}")
            elif not any(row.promise.words in error and "LockstepError" in error for error in errors):
                wrong.append(f"{row.name}, {shards} shards, {nproc} ranks: {errors}")
    assert not wrong, "\n".join(wrong)


def test_what_is_documented_to_differ_runs_and_differs(results):
    rows = rows_of(Documented)
    alone = results(rows, 1, 4)
    for row in rows:
        if row.promise.apart == "worlds":
            several = [results([row], nproc, 4)[row.name] for nproc in WORLDS[1:]]
            others = [outcome for by_rank in several for outcome in by_rank]
        else:
            others = results([row], 1, 4, "plain")[row.name]
        assert not alone[row.name][0].error
        assert any(differences(alone[row.name][0], outcome) for outcome in others), f"{row.name} does not differ any more"


def test_the_page_of_pitfalls_is_what_the_table_says():
    assert pitfalls.PAGE.read_text() == pitfalls.page(), (
        f"{os.path.relpath(pitfalls.PAGE)} is not up to date: run python tests/idioms/pitfalls.py"
    )
