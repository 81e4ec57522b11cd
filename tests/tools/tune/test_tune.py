"""``lockstep tune`` on scripts whose times are known, because they sleep."""

import json
import re

import pytest
from crew import warm_server
from warm import run_on

pytestmark = [pytest.mark.timeout(240), pytest.mark.long]

TRAIN = """
import sys, time, torch, lockstep
from torch.utils.data import DataLoader, Dataset
fetch_s, step_s, last = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

class Images(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(fetch_s)
        return torch.ones(6), torch.ones(1)

team = lockstep.join(run_dir="mine")
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Images(), 8))
for epoch in team.epochs(1):
    for number, batch in enumerate(loader):
        for x, y in batch.shards:
            time.sleep(step_s)
            team.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if number == last:
            break
    team.print("workers", loader.num_workers)
"""


@pytest.fixture
def refusal(tmp_path):
    """``refusal()``: the code of the error with which the latest command was refused."""

    def read():
        reports = [json.loads(line) for line in (tmp_path.parent / "reports.jsonl").read_text().splitlines()]
        return [report["code"] for report in reports if report["kind"] == "refused"][-1]

    return read


@pytest.fixture
def tune(warm_trials, outlives_tests, request, tmp_path):
    """``tune(*words, source=TRAIN, status=0, until="")``: what ``lockstep tune`` prints, on both
    streams.

    On a busy machine something else may hold up the very window that confirms a gain, which is then
    not claimed: with ``until``, the command gets three attempts to print something that this
    regular expression matches."""

    def run(*words, source=TRAIN, status=0, verb="tune", until=""):
        (tmp_path / "train.py").write_text(source)
        for _ in range(3):
            server, arguments = warm_server(request, outlives_tests), list(map(str, words))
            # Not in tmp_path, in which nothing but the script may be left.
            env = {"LOCKSTEP_REPORTS": str(tmp_path.parent / "reports.jsonl")}
            done = run_on(server, tmp_path, arguments, env=env, verb=verb)
            told = done.stdout + done.stderr
            assert done.returncode == status, told
            if re.search(until, told, re.MULTILINE):
                return told
        pytest.fail(f"in none of three attempts: {until}\n{told}")

    return run


def test_a_loader_that_waits_gets_workers(tune, tmp_path):
    told = tune("--seconds", "0.3", "train.py", 0.01, 0.06, 9999, until=r"^data-bound: .* times as fast, confirmed$")
    workers = int(re.search(r"lockstep run --workers (\d+) train\.py", told)[1])
    assert workers >= 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"], "the runs are thrown away"
    assert f"workers {workers}" in tune("--workers", workers, "train.py", 0, 0, 5, verb="run")


def test_a_script_that_ends_before_it_was_timed_is_told_to_train_longer(tune):
    told = tune("--seconds", "0.1", "train.py", 0.001, 0.001, 20, status=1)
    assert "before its loader was measured" in told
    assert "--seconds 0.1" in told


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("print('hello')", "not-joined"),
        ("import lockstep\nlockstep.join()\nraise ValueError('no data')", "script-failed"),
        (
            TRAIN.replace("DataLoader(Images(), 8))", "[(torch.ones(4, 6), torch.ones(4, 1))] * 50)"),
            "no-loader",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(tune, refusal, source, code):
    tune("train.py", 0, 0, 9999, source=source, status=1)
    assert refusal() == code


def test_several_machines_are_refused_before_anything_runs(tune, refusal):
    tune("--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "train.py", status=2)
    assert refusal() == "several-machines"
