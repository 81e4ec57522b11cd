"""The option ``--processor``: which tests, files and directories take the processor's time, with all their processes."""

import contextlib
import os
from collections import Counter
from pathlib import PurePosixPath

import psutil
import pytest

MOST_TESTS = 30


def used_s():
    """Processor seconds of this process, those that it has started, those that they have, and those that have ended."""
    total_s = sum(os.times()[:4])
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total_s += sum(process.cpu_times()[:4])
    return total_s


class ProcessorTime:
    """The plugin. A test of a session-wide fixture or of a server pays for it where it is made, and ended."""

    def __init__(self):
        self._before_s = 0.0
        self._used_s = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._before_s = used_s()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        now_s = used_s()
        report.processor_s, self._before_s = now_s - self._before_s, now_s  # xdist's workers send it along
        return report

    def pytest_runtest_logreport(self, report):
        self._used_s[report.nodeid] += getattr(report, "processor_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        files, directories = Counter(), Counter()
        for name, seconds in self._used_s.items():
            path = PurePosixPath(name.partition("::")[0])
            files[str(path)] += seconds
            directories[str(path.parent)] += seconds
        for what, counted in (("directories", directories), ("files", files), ("tests", self._used_s)):
            shown = counted.most_common(MOST_TESTS)
            terminalreporter.section(f"processor seconds of {what}: {sum(counted.values()):.0f} in all")
            for name, seconds in shown:
                terminalreporter.write_line(f"{seconds:8.1f}  {name}")
