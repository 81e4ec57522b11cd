"""Each fault of ``fault_rows.ROWS`` is reported with its ranks, lines and cause, by the fields of
the report."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from fault_rows import CULPRIT, ROWS

from lockstep._base.reports import FAILED

pytestmark = pytest.mark.timeout(240)

AT_A_TIME = 12
"""They mostly wait."""
LIMIT_S = 75.0
END_S = 9.0
"""After SIGTERM; 5 s on a machine that does nothing else."""
AFTERMATH_S = 1.0
"""What is reported so soon after the first report is seen as well."""


class Seen(NamedTuple):
    """What a launch has left."""

    reports: list
    status: int
    end_s: float
    """How long it took to end once it was asked to; 0: it had ended."""
    left: list
    """Processes that were still there."""
    errors: str


def read(file):
    """The reports that are whole."""
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def started_cold(words, size, **streams):
    """The command, with a /dev/shm of this size."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-m", "lockstep._cli.main", "run", *words]
    return subprocess.Popen(command, **streams)


def launch(nursery, outlives_tests, directory, row, nproc, culprit, env):
    """To its end, or to the first report."""
    directory.mkdir()
    file = directory / "reports.jsonl"
    words = ["--nproc-per-node", str(nproc), "--reports", str(file), str(row.path), str(culprit), *row.args]
    with (directory / "out").open("w") as out, (directory / "err").open("w") as err:
        streams = {"cwd": directory, "stdout": out, "stderr": err, "env": env}
        process = started_cold(words, row.shm, **streams) if row.shm else nursery.start(words, **streams)
        outlives_tests(process.pid)
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            if row.kind and not row.ends and read(file):
                time.sleep(AFTERMATH_S)
                break
        asked_s, is_over = time.monotonic(), process.poll() is not None
        while process.poll() is None:
            is_late = time.monotonic() - asked_s > 2 * END_S
            process.send_signal(signal.SIGKILL if is_late else signal.SIGTERM)
            for _ in range(30):
                if process.poll() is None:
                    time.sleep(0.1)
        end_s = 0.0 if is_over else time.monotonic() - asked_s
    left = [p.info for p in psutil.process_iter(["pid", "cwd", "cmdline"]) if p.info["cwd"] == str(directory)]
    return Seen(read(file), process.returncode, end_s, left, (directory / "err").read_text())


def cases():
    """In CI a row has one of its worlds, by turns, and where it takes no time, each."""
    for number, row in enumerate(ROWS):
        for turn, (nproc, culprit) in enumerate(row.worlds):
            mark = "quick" if row.quick and nproc == 2 else "long"
            if not row.quick and turn != number % len(row.worlds):
                mark = "longest"
            yield pytest.param(row, nproc, culprit, id=f"{row.name}-{culprit} of {nproc}", marks=getattr(pytest.mark, mark))


def test_each_cause_is_listed_for_programs_that_read_reports():
    page = (Path(__file__).parents[3] / "docs" / "report-fields.md").read_text()
    for row in ROWS:
        if row.kind:
            causes = re.search(rf"^\| `{row.kind}` \| [^|]* \| (.*) \|$", page, re.MULTILINE)[1]
            assert f"`{row.cause}`" in causes, row


@pytest.fixture(scope="module")
def seen(request, nursery, outlives_tests, tmp_path_factory):
    """What was seen of a row, by ``(row.name, nproc, culprit)``. All that are asked for are
    launched beside each other."""
    chosen = [
        item.callspec.params for item in request.session.items if item.path == request.path and hasattr(item, "callspec")
    ]
    chosen = {(p["row"].name, p["nproc"], p["culprit"]): p["row"] for p in chosen if "row" in p}
    root, env = tmp_path_factory.mktemp("rows"), {**os.environ, "OMP_NUM_THREADS": "1"}
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {
            key: pool.submit(launch, nursery, outlives_tests, root / f"{number}", row, *key[1:], env)
            for number, (key, row) in enumerate(sorted(chosen.items(), key=lambda one: -one[1].wait_s))
            if not (row.shm and os.geteuid())
        }


@pytest.mark.parametrize(("row", "nproc", "culprit"), list(cases()))
def test_a_fault_is_reported_with_its_ranks_lines_and_cause(seen, require, row, nproc, culprit):
    if row.shm:
        require("root", "a small /dev/shm needs a mount namespace, and that root" if os.geteuid() else None)
    found = seen[row.name, nproc, culprit].result()
    assert not found.left
    if not row.kind:
        assert (found.reports, found.status) == ([], 0), found.errors
        return
    assert found.end_s < END_S, found.errors
    # what failed is an effect here
    told = [report for report in found.reports if report["kind"] != FAILED]
    assert told, f"nothing but {found.reports}: {found.errors}"
    known = [(report["kind"], report["ranks"], report["cause"]) for report in told]
    assert len(known) == len({str(each) for each in known}), f"noted again: {known}"
    report, others = told[0], [rank for rank in range(nproc) if rank != culprit]
    shown = f"{report}\n{found.errors}"
    assert (report["kind"], report["cause"]) == (row.kind, row.cause), shown
    assert report["ranks"] in ([[culprit]] if row.blames else [[culprit], [], list(range(nproc))]), shown
    for role, mark in row.lines.items():
        for rank in [culprit] if role == CULPRIT else others:
            place = report["places"].get(str(rank))
            if place is None and not row.has_place:
                continue
            file, line = re.match(r"(.*):(\d+)", place).groups()
            assert Path(file).name == row.path.name, shown
            assert int(line) in row.lines_of(mark), shown
    for role, call in row.calls.items():
        for rank in [culprit] if role == CULPRIT else others:
            assert re.search(call, report["calls"][str(rank)]), shown
