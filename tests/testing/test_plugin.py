"""A test that is marked runs on each number of processes, or fails with a reason; other tests know
nothing of it."""

import subprocess
import sys

import pytest
from crew import warm_server

pytestmark = pytest.mark.timeout(90)

# Of one file, so that pytest starts once. Each test's name says how it must end.
FILE = """
import pytest, torch
import lockstep
from lockstep.testing import same_at

def train(factor=1.0):
    team = lockstep.join()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(torch.ones(8, 2), 4))
    for batch in loader:
        for x in batch.shards:
            team.backward(model(x).mean() * (factor or 1 + team.rank))
        optimizer.step()
        optimizer.zero_grad()
    assert team.step == 2

@pytest.mark.lockstep(worlds=(1, 2))
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_passed(factor, tmp_path):
    (tmp_path / "written").write_text("by a rank")
    train(factor)

class TestMethods:
    factor = 1.0

    @pytest.fixture(autouse=True)
    def set(self):
        self.factor = 3.0

    @pytest.mark.lockstep(worlds=(1, 2), shards=4, threads=1)
    def test_passed(self):
        assert self.factor == 3.0
        train(self.factor)

@pytest.mark.lockstep(worlds=(1, 2))
def test_failed_since_ranks_differ():
    train(factor=0.0)

@pytest.mark.lockstep(worlds=(1, 2))
def test_failed_by_an_assertion():
    assert 1 + 1 == 3, "so it is"

@pytest.mark.xfail(strict=True)
@pytest.mark.lockstep(worlds=(1, 2))
def test_skipped_since_it_is_expected_to_fail():
    train(factor=0.0)

@pytest.mark.lockstep(worlds=(1, 2))
def test_skipped_by_itself():
    pytest.importorskip("no_such_module")

def skip():
    pytest.skip("no data")

def test_skipped_by_its_function():
    same_at((1, 2), skip)

@pytest.mark.lockstep(worlds=(1, 2))
def test_failed_since_it_trains_nothing():
    pass

"""

# They start nothing.
HERE = """
import threading, unittest
import pytest

@pytest.mark.lockstep
def test_failed_without_worlds():
    raise AssertionError

@pytest.mark.lockstep(worlds=(1, 2))
def test_failed_with_a_fixture_that_stays_here(monkeypatch):
    raise AssertionError

@pytest.mark.lockstep(worlds=(1, 2))
async def test_failed_as_a_coroutine():
    raise AssertionError

class TestCase(unittest.TestCase):
    @pytest.mark.lockstep(worlds=(1, 2))
    def test_failed_as_a_test_case(self):
        raise AssertionError

def test_passed_without_the_marker():
    assert threading.current_thread() is threading.main_thread()

@pytest.mark.lockstep(worlds=(1, 2), stratgy="ddp")
def test_failed_with_an_unknown_setting(): ...
"""


class Outcomes:
    """What became of each test, and why."""

    def __init__(self):
        self.by_test = {}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.by_test[report.nodeid.partition("::")[2]] = report.outcome, report.longreprtext


def outcomes_of(file, place, *options):
    (place / "test_marked.py").write_text(file)
    (place / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\nfilterwarnings = error\n")
    found, path = Outcomes(), list(sys.path)
    fixed = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "--rootdir", str(place), str(place)]
    pytest.main([*fixed, *options], plugins=[found])
    sys.path[:] = path
    sys.modules.pop("test_marked", None)  # of another folder next
    return found.by_test


@pytest.fixture(scope="module")
def outcomes(request, outlives_tests, tmp_path_factory):
    warm_server(request, outlives_tests)
    return outcomes_of(FILE, tmp_path_factory.mktemp("project"))


def test_a_test_that_cannot_run_on_ranks_fails_with_the_reason_and_others_know_nothing_of_it(tmp_path):
    found = outcomes_of(HERE, tmp_path)
    assert [f"test_{outcome}" in name for name, (outcome, _) in found.items()] == [True] * 6
    reasons = {
        "test_failed_without_worlds": "numbers of processes",
        "test_failed_with_a_fixture_that_stays_here": "monkeypatch",
        "test_failed_as_a_coroutine": "coroutine",
        "TestCase::test_failed_as_a_test_case": "unittest",
        "test_failed_with_an_unknown_setting": "stratgy",
    }
    for name, reason in reasons.items():
        assert reason in found[name][1]
        assert "site-packages" not in found[name][1]
    (tmp_path / "fewer").mkdir()
    alone = outcomes_of(HERE, tmp_path / "fewer", "--lockstep-worlds=1")
    assert {name: outcome for name, (outcome, _) in alone.items()} == {name: outcome for name, (outcome, _) in found.items()}


@pytest.mark.long
def test_each_test_ends_as_its_name_says(outcomes):
    assert len(outcomes) == 9
    for name, (outcome, reason) in outcomes.items():
        assert f"test_{outcome}" in name, reason


@pytest.mark.long
def test_each_test_that_fails_says_why(outcomes):
    for name, (outcome, reason) in outcomes.items():
        assert (len(reason) > 40) == (outcome != "passed"), name
    assert {reason for _, reason in outcomes.values() if "site-packages" in reason} == set()
    assert "step 1, shard 1" in outcomes["test_failed_since_ranks_differ"][1].replace(" (epoch 1)", "")
    assert "so it is" in outcomes["test_failed_by_an_assertion"][1]


@pytest.mark.long
def test_the_plug_in_imports_no_torch_and_little_else():
    program = "import sys, pytest; before = {*sys.modules}; import lockstep.testing._plugin; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    imported = done.stdout.split()
    assert "lockstep.testing._plugin" in imported
    assert {"torch", "numpy", "psutil", "click"}.isdisjoint(imported)
    assert {name for name in imported if name.startswith("lockstep")} == {
        "lockstep",
        "lockstep._base",
        "lockstep._base.exit_status",
        "lockstep._base.exports",
        "lockstep.testing",
        "lockstep.testing._plugin",
    }


@pytest.mark.parametrize(
    ("given", "status"), [("1,2", pytest.ExitCode.NO_TESTS_COLLECTED), ("1,x", pytest.ExitCode.USAGE_ERROR)]
)
def test_the_numbers_of_processes_on_the_command_line_are_checked_at_once(given, status, tmp_path):
    assert (
        pytest.main(
            ["-q", "-p", "no:cacheprovider", f"--lockstep-worlds={given}", "--rootdir", str(tmp_path), str(tmp_path)]
        )
        == status
    )
