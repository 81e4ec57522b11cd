"""The series that is run first on a GPU: its order, its report, and what it does about failures.
Its stages here need no torch."""

import ast
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from gpu.__main__ import make_parser
from gpu.checks.nics import sent_bytes
from gpu.processes import run
from gpu.series import Series, unusable
from gpu.stage import Hosts, Setting, Stage
from gpu.table import STAGES, seconds_at_most

ROOT = Path(__file__).parents[2]
FOUND = {
    "missing": [],
    "driver": "",
    "torch": {"version": "2.13.0", "built for CUDA": "13.0", "kind": "cuda", "num_devices": 1},
}


def stage(name, source, **more):
    """A stage that runs a line of Python; ``found``: the path of what it finds."""
    about = {"shows": name, "limit_s": 100.0, "causes": (f"{name} is broken",), "read": ("README.md",), **more}
    return Stage(name=name, command=lambda _, found: [sys.executable, "-c", f"found = {str(found)!r}\n{source}"], **about)


@pytest.fixture
def series(tmp_path):
    """``series(*stages, ...)``: what has come of them, what was said, and the report as programs
    read it."""

    def run_all(*stages, numbers=None, found=FOUND, device="cuda", **options):
        said = []
        machine = stage("machine", f"open(found, 'w').write({json.dumps(found)!r})")
        made = Series(stages, device=device, out=tmp_path / "report", say=said.append, machine=machine)
        outcomes = made.run(numbers or range(1, len(stages) + 1), **options)
        return outcomes, "\n".join(said), json.loads((tmp_path / "report" / "report.json").read_text())

    return run_all


def test_stages_run_up_to_the_first_that_fails_and_the_report_says_where_to_look(series, tmp_path):
    first = stage("first", "import json; json.dump({'waits': 1}, open(found, 'w')); print('of the first')")
    second = stage("second", "print('why it failed'); raise SystemExit(3)")
    outcomes, said, report = series(first, second, stage("third", ""))
    assert [(one.name, one.verdict) for one in outcomes] == [
        ("machine", "passed"),
        ("first", "passed"),
        ("second", "failed"),
    ]
    assert [one["name"] for one in report["stages"]] == ["machine", "first", "second"]
    assert (report["stages"][1]["found"], report["stages"][2]["status"]) == ({"waits": 1}, 3)
    assert report["machine"] == FOUND
    page = (tmp_path / "report" / "report.md").read_text()
    for text in (said, page):
        assert "second is broken" in text
        assert "README.md" in text
        assert "--stage second" in text
        assert "why it failed" in text
    assert "of the first" in (tmp_path / "report" / "output.log").read_text()


def test_the_others_run_too_if_that_is_asked_for_and_one_of_them_may_run_alone(series):
    stages = [stage("broken", "raise SystemExit(1)"), stage("whole", "")]
    assert [one.verdict for one in series(*stages, keep_going=True)[0]] == ["passed", "failed", "passed"]
    assert [one.name for one in series(*stages, numbers=[2])[0]] == ["machine", "whole"]


def test_a_stage_that_cannot_run_here_says_what_it_needs_and_does_not_count_as_a_failure(series):
    absent = stage("absent", "", distributions=("no-such-distribution",))
    several = stage("several", "", least_devices=2, instead="one does this")
    outcomes, _, report = series(absent, several, stage("hosts", "", needs_hosts=True), stage("last", ""))
    assert [one.verdict for one in outcomes] == ["passed", "not run", "not run", "not run", "passed"]
    for number, why in enumerate(("pip install no-such-distribution", "one does this", "--nnodes"), 1):
        assert why in report["stages"][number]["why"]


def test_a_rehearsal_says_what_only_a_card_shows(series):
    partly, fully = stage("partly", "", only_on_a_card="NCCL"), stage("fully", "")
    outcomes, _, report = series(partly, fully, device="cpu")
    assert [one.verdict for one in outcomes] == ["passed", "rehearsed", "passed"]
    assert "NCCL" in report["stages"][1]["why"]


def test_a_machine_that_cannot_run_anything_fails_with_the_remedy(series):
    nothing, torch = {**FOUND, "missing": ["click>=8.1"]}, {**FOUND["torch"], "kind": None, "built for CUDA": None}
    outcomes, said, report = series(stage("first", ""), found=nothing)
    assert [one.verdict for one in outcomes] == ["unusable"]
    assert "pip install 'click>=8.1'" in said
    assert report["machine"] == nothing
    without_gpu = {**FOUND, "torch": torch}
    assert "without CUDA" in unusable(without_gpu, "cuda")
    assert unusable(without_gpu, "cpu") == ""


def test_a_stage_that_hangs_has_failed_when_its_limit_is_over(series):
    outcomes, said, _ = series(stage("endless", "import time; time.sleep(10000)", limit_s=0.2), stage("last", ""))
    assert [one.verdict for one in outcomes] == ["passed", "hung"]
    assert "endless is broken" in said


HANGS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"], start_new_session=True)
open("child", "w").write(str(child.pid))
def where_it_hangs():
    time.sleep(10000)
where_it_hangs()
"""


def test_of_what_hangs_no_process_stays_and_the_stacks_are_kept(tmp_path):
    # until the machine was quick enough for it to come so far
    for limit_s in (1.0, 4.0, 16.0, 64.0):
        log = tmp_path / f"log {limit_s}"
        ended = run(
            [sys.executable, "-c", HANGS], cwd=tmp_path, environ=os.environ, log=log, limit_s=limit_s, watch=lambda _: None
        )
        assert ended.status is None
        if (tmp_path / "child").exists() and "where_it_hangs" in log.read_text():
            break
    assert "where_it_hangs" in log.read_text()
    stat = Path("/proc", (tmp_path / "child").read_text(), "stat")
    # it waits for init
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_every_stage_names_files_that_exist_and_a_cause():
    for one in STAGES:
        assert one.causes
        assert [name for name in one.read if not (ROOT / name).exists()] == []


def test_what_never_ran_comes_first_and_all_of_it_takes_half_an_hour_at_most():
    names = [stage.name for stage in STAGES]
    assert names[:9] == ["doctor", "epoch", "worlds", "exact", "fsdp", "resume", "subtrees", "ddp", "ends"]
    assert [stage.name for stage in STAGES if stage.least_devices == 1][:3] == ["doctor", "epoch", "tree"]
    assert seconds_at_most(STAGES, 1) <= 12 * 60
    assert seconds_at_most(STAGES, 8) <= seconds_at_most(STAGES, 8, on_hosts=True) <= 30 * 60


def test_every_command_that_the_pages_have_is_one():
    pages = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    shown = [words for page in pages.values() for words in re.findall(r'make gpu ARGS="([^"\n]+)"', page)]
    shown += [words for page in pages.values() for words in re.findall(r"python tools/gpu (--[^`'#\n]+)", page)]
    assert len(shown) > 10
    asked = [
        make_parser(STAGES).parse_args(shlex.split(words.replace("$SLURM_NODEID", "0"))) for words in shown
    ]  # SystemExit: it is none
    answering = {number for args in asked for number in args.stage or ()}
    several = {number for number, stage in enumerate(STAGES, 1) if stage.least_devices > 1 or stage.needs_hosts}
    assert several - answering == set()


def test_the_page_lists_the_stages_in_their_order_and_for_how_long_they_may_run():
    page = (ROOT / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, flags=re.MULTILINE)
    assert rows == [(str(number), stage.name) for number, stage in enumerate(STAGES, 1)]
    (limits,) = re.findall(r"(\d+) minutes\s[^.\d]*(\d+)", page)
    assert limits == tuple(str(math.ceil(seconds_at_most(STAGES, count) / 60)) for count in (8, 1))


def test_a_stage_on_several_machines_gets_them(tmp_path):
    (hosts,) = [one for one in STAGES if one.needs_hosts]
    machines = Hosts(nnodes=2, node_rank=1, master_addr="host0", master_port=29500)
    command = hosts.command(Setting(device="cuda", num_devices=8, out=tmp_path, hosts=machines), tmp_path / "found.json")
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=host0"} <= set(command)


def test_what_a_machine_sent_is_read_from_all_its_interfaces(tmp_path):
    counters = {
        "net/eth0/statistics/tx_bytes": "5\n",
        "infiniband/mlx5_0/ports/1/counters/port_xmit_data": "7\n",  # in words of four bytes
        "net/gone/statistics/tx_bytes": "",
    }
    for name, text in counters.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    assert sent_bytes(tmp_path) == {"eth0": 5, "mlx5_0 port 1": 28}
    assert sent_bytes()["lo"] > 0


def test_no_test_that_is_marked_cuda_is_outside_of_what_the_stage_runs(tmp_path):
    (tests,) = [one for one in STAGES if one.name == "tests"]
    command = tests.command(Setting(device="cuda", num_devices=1, out=tmp_path), tmp_path / "found.json")
    folders = [Path(word) for word in command if Path(word).parent == ROOT / "tests"]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if is_marked_cuda(path)]
    assert len(marked) > 3
    assert [path for path in marked if not set(path.parents).intersection(folders)] == []


def is_marked_cuda(path):
    text = path.read_text()
    return "mark.cuda" in text and any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.cuda" for node in ast.walk(ast.parse(text))
    )


def test_help_lists_the_stages_and_needs_nothing_but_python(run_command):
    said = run_command("--help").stdout
    assert [one.name for one in STAGES if one.name not in said] == []
    assert run_command("--stage", "eleventh").returncode == 2
    assert run_command("--stage", "hosts", "--nnodes", "2").returncode == 2  # which machine is the first?


@pytest.fixture
def run_command():
    """The command, by a Python that finds no packages."""

    def run_it(*words):
        command = [sys.executable, "-S", str(ROOT / "tools" / "gpu"), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    return run_it
