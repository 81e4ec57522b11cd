"""A plugin of pytest that writes how each test ended: a line of JSON in the file that the variable
OUTCOMES_FILE has the path of. Until it ends, its outcome is "started": so one that hangs is known.
"""

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "OUTCOMES_FILE"


def read_outcomes(file: Path) -> dict[str, str]:
    """Returns the last outcome of each test: started, passed, failed or skipped."""
    outcomes: dict[str, str] = {}
    if file.exists():
        for line in file.read_text().splitlines():
            test, outcome = json.loads(line)
            if outcomes.get(test) != "failed":  # a test whose end fails has failed
                outcomes[test] = outcome
    return outcomes


def _write(test: str, outcome: str) -> None:
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(json.dumps([test, outcome]) + "\n")


class Outcomes:
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        _write(nodeid, "started")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            _write(report.nodeid, report.outcome)


def pytest_configure(config: Any) -> None:
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        config.pluginmanager.register(Outcomes())
