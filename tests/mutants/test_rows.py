"""The tables of faults are sound: each fault can be planted, and the tests that it names exist.
``make mutants`` runs them."""

import ast
import functools
from collections import Counter
from pathlib import Path

import pytest
from faults import HERE, SOURCE, Fault, read_faults

pytestmark = pytest.mark.timeout(60)
ROOT = HERE.parents[1]
FAULTS = read_faults(sorted(HERE.glob("*.toml")))


@functools.cache
def text_of(file: Path) -> str:
    return file.read_text()


@functools.cache
def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_its_tests_exist(fault: Fault) -> None:
    fault.planted_in(text_of(ROOT / SOURCE / fault.file))
    assert bool(fault.tests) != bool(fault.survives), "a row has tests, or a reason why it survives"
    for test in fault.tests:
        file, *parts = test.split("[")[0].split("::")
        assert set(parts) <= functions_of(ROOT / file), test


def test_each_fault_has_a_name_of_its_own() -> None:
    assert [name for name, times in Counter(fault.name for fault in FAULTS).items() if times > 1] == []


def test_there_are_faults_of_every_room() -> None:
    packages = {path.name for path in (ROOT / SOURCE).glob("_*") if (path / "__init__.py").exists()}
    assert packages - {fault.file.partition("/")[0] for fault in FAULTS} == set()
    assert len(FAULTS) >= 60
