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

class Decode:
    def __call__(self, image):
        time.sleep(fetch_s)
        return image

class Images(Dataset):
    decode = Decode()
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if index % 50 == 7:
            time.sleep(12 * fetch_s)
        return self.decode(torch.ones(6)), torch.ones(1)

team = lockstep.join(run_dir="mine")
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, DataLoader(Images(), 8))
for epoch in team.epochs(1):
    for number, batch in enumerate(loader):
        for x, y in batch.shards:
            time.sleep(step_s)
            team.backward((model(x) - y).square().mean())
        optimizer.step()
        schedule.step()  # refuses more than twenty
        optimizer.zero_grad()
        if number == last:
            break
    team.print("workers", loader.num_workers)
"""


@pytest.fixture
def tune(warm_trials, outlives_tests, request, tmp_path):
    """``tune(*words, source=TRAIN, status=0, until="")``: what ``lockstep tune`` prints, on both streams.

    On a busy machine something else may hold up the very window that confirms a gain, which is then not claimed: with
    ``until``, the command gets three attempts to print something that this regular expression matches.
    """

    def run(*words, source=TRAIN, status=0, verb="tune", until=""):
        (tmp_path / "train.py").write_text(source)
        for _ in range(3):
            done = run_on(warm_server(request, outlives_tests), tmp_path, list(map(str, words)), verb=verb)
            told = done.stdout + done.stderr
            assert done.returncode == status, told
            if re.search(until, told, re.MULTILINE):
                return told
        pytest.fail(f"in none of three attempts: {until}\n{told}")

    return run


def test_a_loader_that_waits_gets_workers_and_its_costliest_part_and_sample_are_named(tune, tmp_path):
    words = ["--seconds", "0.2", "train.py", 0.003, 0.004, 9999]
    told = tune(*words, until=r"^data-bound: the loader takes .* ms a step of .* ms; .*times as fast, confirmed$")
    assert "costs most in the loader: Decode.__call__ (train.py:7), " in told
    assert "mostly in time.sleep" in told
    assert re.search(r"^sample \d*[05]7 takes ", told, re.MULTILINE), told
    assert told.count("\ntrial ") <= 2 * 3, "each is announced, and reported"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py", "train.tuned.json"], "the run is thrown away"
    found = json.loads((tmp_path / "train.tuned.json").read_text())
    assert found["loading"]["workers"] >= 2
    command = re.search(r"lockstep run (.*train\.tuned\.json train\.py.*)", told)[1].split()
    assert f"workers {found['loading']['workers']}" in tune(*command[:-1], 5, verb="run")


def test_where_steps_take_the_time_there_is_nothing_to_gain_and_the_file_says_so(tune, tmp_path):
    keeps_up = r"^nothing to gain from the loader, which keeps up: a step takes "
    told = tune("--seconds", "0.2", "train.py", 0, 0.4, 9999, until=keeps_up)
    assert "trial" not in told
    assert json.loads((tmp_path / "train.tuned.json").read_text())["loading"] == dict.fromkeys(
        ("workers", "prefetch", "pin")
    )
    assert "found nothing to gain" in tune("--tuned", "train.tuned.json", "train.py", 0, 0, 5, verb="run")


def test_several_processes_take_the_same_steps_and_find_one_answer(tune, tmp_path):
    words = ["--seconds", "0.1", "--nproc", "2", "--shards", "4"]
    tune(*words, "train.py", 0.003, 0.004, 9999, until="times as fast, confirmed")
    situation = json.loads((tmp_path / "train.tuned.json").read_text())["situation"]
    assert (situation["world_size"], situation["local_world_size"]) == (2, 2)


def test_a_script_that_leaves_its_loop_early_goes_on_in_the_next_pass_or_is_told_to(tune):
    told = tune("--seconds", "0.1", "train.py", 0.001, 0.001, 20, status=1)
    assert "the script ended before its loader was measured" in told
    assert "--seconds 0.1" in told


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("print('hello')", "without calling lockstep.join()"),
        ("import lockstep\nlockstep.join()\nraise ValueError('no data')", "the script failed: ValueError: no data"),
        (
            TRAIN.replace("DataLoader(Images(), 8))", "[(torch.ones(4, 6), torch.ones(4, 1))] * 50)"),
            "nothing to tune: the script trains on a list of its own, not on a DataLoader",
        ),
    ],
)
def test_what_cannot_be_measured_is_said_in_words(tune, tmp_path, source, message):
    assert message in tune("train.py", 0, 0, 9999, source=source, status=1)
    assert not (tmp_path / "train.tuned.json").exists()


def test_arguments_that_cannot_be_meant_are_refused_before_anything_runs(tune, tmp_path):
    assert "measures on one machine" in tune("--nnodes", "2", "--node-rank", "0", "--master-addr", "a", "train.py", status=2)
    (tmp_path / "notes.json").write_text("{}")
    assert "is not a file of lockstep tune" in tune("--out", "notes.json", "train.py", status=2)
