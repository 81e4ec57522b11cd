"""What the team does besides training: printing, logging, taking turns, beginning and ending."""

import time

import psutil
import pytest
import team_scripts

pytestmark = pytest.mark.timeout(60)


@pytest.mark.quick
def test_main_comes_first(crew, tmp_path):
    for seen in crew(3, team_scripts.first_and_then, str(tmp_path / "order")):
        assert seen[0] == "0"
        assert sorted(seen) == ["0", "1", "2"]


@pytest.mark.quick
def test_a_failure_of_main_reaches_the_others_and_nobody_waits(crew):
    told = crew(3, team_scripts.fail_first, timeout_s=20.0)
    assert told[0] == ("OSError", "no download on rank 0")
    assert {kind for kind, _ in told[1:]} == {"PeerError"}
    assert all("rank 0 failed in main_first()" in message for _, message in told[1:])


def test_logged_values_are_in_the_journal_by_step(crew):
    events = crew(2, team_scripts.log_numbers, 10, 4, 2, shards=4)[0]
    steps = [event for event in events if event["event"] == "step"]
    # A step's values come in one event, or in two if some were logged after it.
    values = {}
    for event in steps:
        values.setdefault(event["step"], {}).update(event["values"])
        assert event["epoch"] == (event["step"] - 1) // 3
    assert sorted(values) == [1, 2, 3, 4, 5, 6]
    for step in values:
        batch = range(4 * ((step - 1) % 3), min(4 * ((step - 1) % 3) + 4, 10))
        assert values[step]["mean"] == pytest.approx(sum(batch) / len(batch))
        assert ("odd" in values[step]) == (step % 2 == 1)
    assert [values[step]["epoch"] for step in (3, 6)] == [0.0, 1.0]
    assert [event["event"] for event in (events[0], events[-1])] == ["start", "end"]
    assert [e["num_samples"] for e in events if e["event"] == "epoch"] == [10, 10]


def test_after_close_no_group_is_left_and_the_process_can_join_again(crew):
    for rank, found in enumerate(crew(2, team_scripts.groups_and_threads, 3)):
        assert [total for total, *_ in found] == [2] * 3
        assert [is_open for _, is_open, *_ in found] == [False] * 3
        assert all(lost == "group-closed" for *_, lost, _, _ in found), rank
        assert [num_sockets for *_, num_sockets, _ in found] == [0] * 3
        assert len({directory for *_, directory in found}) == 3


@pytest.mark.long
def test_no_port_of_a_running_job_can_be_reached_from_another_host(start_launcher, tmp_path):
    (tmp_path / "script.py").write_text(
        """
import time, torch, lockstep
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset
team = lockstep.join()
data = DataLoader(TensorDataset(torch.ones(4, 1)), 4, num_workers=1)
model, loader = team.prepare(torch.nn.Linear(1, 1), data)
sub_group = team.new_group([1])
while not Path("seen").exists():
    for batch in loader:
        for (inputs,) in batch.shards:
            team.backward(model(inputs).mean())
        if team.step == 2:
            Path(f"training-{team.rank}").touch()
    if team.any(Path("seen").exists()):
        break
"""
    )
    job = start_launcher("--nproc-per-node", "2", "--progress", "off", "script.py")
    deadline = time.monotonic() + 100
    while not all((tmp_path / f"training-{rank}").exists() for rank in (0, 1)):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    tree = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
    sockets = [s for process in tree for s in _listening(process)]
    (tmp_path / "seen").touch()
    _, err = job.communicate(timeout=100)
    assert job.returncode == 0, err
    assert len(tree) >= 4  # the launcher, the fork server, two workers
    assert sockets, "Gloo listens somewhere: this test looks in the wrong place"
    assert {address for address, _ in sockets} == {"127.0.0.1"}


def _listening(process):
    try:
        connections = process.net_connections(kind="inet")
    except psutil.Error:  # a loader worker that has ended meanwhile
        return []
    return [tuple(c.laddr) for c in connections if c.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)]
