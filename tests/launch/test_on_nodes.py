"""Several launchers, each a node of its own, on this machine: they meet, fail, start again and end
together.

(What needs hosts of their own, with links to cut, is in tests/cluster.)
"""

import base64
import contextlib
import datetime
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from launch_helpers import free_port, until
from node_scripts import FAILS, TALK, TRAIN, read_steps, read_weights
from torch.distributed import TCPStore

from lockstep._base.reports import REFUSED

pytestmark = pytest.mark.timeout(100)


class Node:
    def __init__(self, directory, start):
        self._files = [(directory / f"{time.monotonic_ns()}.{name}").open("w+") for name in ("out", "err")]
        self._reports = directory / f"{time.monotonic_ns()}.reports"
        environ = {"LOCKSTEP_REPORTS": str(self._reports)}
        self.process = start(cwd=directory, stdout=self._files[0], stderr=self._files[1], env=environ)

    @property
    def out(self):
        return Path(self._files[0].name).read_text()

    @property
    def err(self):
        return Path(self._files[1].name).read_text()

    @property
    def codes(self):
        """The codes of the errors with which it has refused to go on."""
        lines = self._reports.read_text().splitlines() if self._reports.exists() else []
        return [report["code"] for report in map(json.loads, lines) if report["kind"] == REFUSED]

    def wait(self, timeout_s=100.0):
        """The exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not done after {timeout_s} s\n-- stdout\n{self.out}\n-- stderr\n{self.err}", pytrace=False)

    def kill(self):
        """As if its machine had lost its power."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for each in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
        self.process.wait(10)

    def close(self):
        self.kill()
        for file in self._files:
            file.close()


@pytest.fixture
def node(tmp_path, nursery):
    """``node(source, *options, args=())``: the launcher of one node, started. ``starter``: another
    module than lockstep's."""
    nodes = []

    def start(source, *options, args=(), name="script.py", starter=None):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        words = [*options, str(path), *map(str, args)]
        begin = partial(nursery.start, words)
        if starter is not None:
            command = [sys.executable, "-m", *starter, *words]
            begin = partial(subprocess.Popen, command, stdin=subprocess.DEVNULL, start_new_session=True)
        nodes.append(Node(tmp_path, begin))
        return nodes[-1]

    yield start
    for each in nodes:
        each.close()


@pytest.fixture
def numbered(node):
    """``numbered(source, rank, *options)``: node ``rank`` of two, with the same port in the whole
    test."""
    port = free_port()

    def start(source, rank, *options, nnodes=2, **more):
        where = ("--nnodes", str(nnodes), "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port))
        return node(source, *where, *options, **more)

    start.port = port
    return start


@pytest.fixture
def coming(node):
    """``coming(source, *options)``: one of one to two nodes that come and go."""
    port = free_port()

    def start(source, *options, nnodes="1:2", **more):
        return node(source, "--nnodes", nnodes, "--rdzv-endpoint", f"127.0.0.1:{port}", *options, **more)

    start.port = port
    return start


def connect(port):
    """The launchers' store, as anybody who reaches its port has it."""
    return TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=60))


def wait_for_no_more(port):
    """Those that have come need not wait any longer for as many as there may be. Returns the
    store."""
    store = connect(port)
    store.set("lockstep/none/begun", "1")
    return store


def both(first, second, status=0, third=None):
    nodes = [node for node in (first, second, third) if node is not None]
    assert {node.wait() for node in nodes} == {status}, "".join(node.err for node in nodes)


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def alone(node, known):
    """``alone(epochs, shards=4)``: the weights of one process that nobody disturbs."""

    def train(epochs, shards=4):
        if (epochs, shards) not in known:
            one = node(TRAIN, "--fresh", "--shards", str(shards), "--run-dir", "alone", args=(epochs, 0))
            assert one.wait() == 0, one.err
            known[epochs, shards] = read_weights(one.out)
        return known[epochs, shards]

    return train


@pytest.fixture
def hurry(tmp_path):
    """``hurry()``: let TRAIN come to its end."""
    return (tmp_path / "hurry").touch


def test_two_nodes_come_to_the_weights_of_one_process_in_any_order_of_starting(numbered, alone, tmp_path):
    options = ("--shards", "4", "--rdzv-id", "job#1?a=b/c d%20")  # a name with any letters
    second = numbered(TRAIN, 1, "--nproc", "2", *options, args=(1, "0.0"))
    until(lambda: f"waiting at 127.0.0.1:{numbered.port} for node 0" in second.err)
    first = numbered(TRAIN, 0, "--nproc", "1", *options, args=(1, 0))
    both(first, second)
    assert "3 processes on 2 nodes: " in first.err
    assert first.out.count("of rank 0 of 3") == 1
    assert all(f"of rank {rank} of 3" in second.out for rank in (1, 2))
    assert read_weights(first.out, second.out) == alone(1)
    assert not list((tmp_path / "runs").glob("*/seen-*"))


@pytest.mark.long
def test_scripts_of_others_get_the_whole_environment_and_only_one_address_listens_with_a_given_secret(numbered, tmp_path):
    held = TALK.replace("dist.destroy_process_group()", "import time; time.sleep(3)\ndist.destroy_process_group()")
    (tmp_path / "mine").write_text("a secret that is long enough")
    options = ("--rdzv-id", "mine", "--max-restarts", "2", "--rdzv-secret-file", "mine")
    first = numbered(held, 0, "--nproc", "1", *options, "--run-dir", "one/run")
    second = numbered(held, 1, "--nproc", "2", *options, "--run-dir", "two/run")
    until(lambda: first.out)
    assert not list(tmp_path.rglob(".lockstep-*"))  # they need no common directory
    sockets = psutil.Process(first.process.pid).net_connections(kind="inet")
    assert [tuple(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN] == [("127.0.0.1", numbered.port)]
    sockets = psutil.Process(second.process.pid).net_connections(kind="inet")
    assert not [one for one in sockets if one.status == psutil.CONN_LISTEN]
    both(first, second)
    found = sorted(
        (json.loads(line) for each in (first, second) for line in each.out.splitlines()), key=lambda one: one["RANK"]
    )
    assert [one["sum"] for one in found] == [3.0] * 3
    for rank, (environ, local, group) in enumerate(zip(found, (0, 0, 1), (0, 1, 1), strict=True)):
        port = environ.pop("MASTER_PORT")
        assert port == found[-1].get("MASTER_PORT", port) != str(numbered.port)
        assert environ == {
            "RANK": str(rank),
            "ROLE_RANK": str(rank),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(group),
            "WORLD_SIZE": "3",
            "ROLE_WORLD_SIZE": "3",
            "LOCAL_WORLD_SIZE": str(1 + group),
            "GROUP_WORLD_SIZE": "2",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": "mine",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "2",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "sum": 3.0,
        }


@pytest.mark.long
def test_a_failure_is_shown_whole_once_and_starts_all_nodes_again_as_often_as_they_may(numbered):
    source = FAILS.replace('raise ValueError(f"boom {start}")', "sys.exit(7 + start)")
    first = numbered(source, 0, "--nproc", "1", "--max-restarts", "2", args=(2, 9))
    second = numbered(source, 1, "--nproc", "2", "--max-restarts", "2", args=(2, 9))
    both(first, second, 9)
    failed = f"rank 2 of 3 on {os.uname().nodename} failed: SystemExit: the script ended itself with sys.exit"
    for start in (7, 8, 9):
        assert first.err.count(f"{failed}({start})") == 1, first.err
        assert second.err.count(f"{failed}({start})") == 1, second.err
    assert "shows all" in second.err
    assert "restart 2 of 2: " in first.err
    assert first.codes == second.codes == ["restarts-used"]


@pytest.mark.long
def test_who_waits_says_for_whom_and_until_when_and_ctrl_c_ends_it(numbered):
    lone = numbered(TALK, 0, nnodes=3)
    assert until(lambda: re.search(r"127\.0\.0\.1:\d+ for nodes 1, 2 of 3 \(\d s .* [\d:]{8}, 600 s", lone.err))
    lone.process.send_signal(signal.SIGINT)
    assert lone.wait() == 130
    assert "stopped by Ctrl-C" in lone.err


HELD = TALK.replace("dist.destroy", "import time\nwhile not os.path.exists('hurry'):\n    time.sleep(0.05)\ndist.destroy")
"""Talks, and lasts until it is told to hurry."""


@pytest.mark.long
def test_of_two_living_nodes_with_one_number_one_gives_up_after_the_timeout_and_the_run_goes_on(numbered, hurry):
    first = numbered(HELD, 0)
    until(lambda: "waiting at" in first.err)
    # the time of the wait is longer than that after which a silent one would count as lost
    two = [numbered(HELD, 1, "--timeout", "12") for _ in range(2)]
    until(lambda: any(each.process.poll() is not None for each in two))
    hurry()
    assert sorted(each.wait() for each in two) == [0, 2]
    assert first.wait() == 0, first.err
    assert [code for each in two for code in each.codes] == ["node-rank-taken"]


@pytest.mark.long
def test_the_number_of_a_node_that_was_lost_while_all_still_met_is_taken_over(numbered):
    first, lost = (numbered(TALK, rank, nnodes=3) for rank in (0, 1))
    until(lambda: "for node 2 of 3" in first.err)
    lost.kill()
    second = numbered(TALK, 1, "--timeout", "12", nnodes=3)
    until(lambda: "took over --node-rank 1" in second.err)
    both(first, second, third=numbered(TALK, 2, nnodes=3))


@pytest.mark.long
def test_a_node_that_was_lost_before_its_processes_joined_does_not_keep_the_others_until_the_timeout(numbered, tmp_path):
    late = f"import os, time\nif os.environ['RANK'] == '1':\n    open('is-late', 'w')\n    time.sleep(1000)\n{TALK}"
    first, lost = (numbered(late, rank, "--timeout", "600") for rank in (0, 1))
    until((tmp_path / "is-late").exists)
    lost.kill()
    second = numbered(late, 1, "--timeout", "12")
    both(first, second, 1)  # within this test's time limit, which is shorter than the timeout
    assert second.codes == ["predecessor-lost"]


@pytest.mark.long
@pytest.mark.parametrize("paused", [0, 1])
def test_a_run_whose_launcher_is_paused_goes_on_although_another_waits_for_its_number(numbered, hurry, paused):
    nodes = [numbered(HELD, rank) for rank in (0, 1)]
    until(lambda: "2 processes on 2 nodes" in nodes[0].err)
    other = numbered(HELD, 1)
    until(lambda: "waiting at" in other.err)
    nodes[paused].process.send_signal(signal.SIGSTOP)
    time.sleep(20)  # longer than a node may be silent that has no place yet
    nodes[paused].process.send_signal(signal.SIGCONT)
    time.sleep(3)
    assert other.process.poll() is None, other.err
    other.process.send_signal(signal.SIGINT)
    hurry()
    both(*nodes)
    assert other.wait() == 130


@pytest.mark.long
def test_a_signal_to_one_launcher_saves_the_run_on_all_nodes_and_it_goes_on(numbered, alone, hurry, tmp_path):
    nodes = [numbered(TRAIN, rank, "--shards", "2", "--max-restarts", "1", args=(2, 0.3)) for rank in (0, 1)]
    until(lambda: len(read_steps(tmp_path)) > 4)
    nodes[1].process.send_signal(signal.SIGTERM)
    both(*nodes, 75)
    assert [each.err.count("To resume: ") for each in nodes] == [1, 1]
    for each in nodes:
        assert not re.search("failed|lost|new rendezvous|Error", each.err), each.err
    stopped_after = len(read_steps(tmp_path)) // 2
    assert {len(steps) for steps in by_rank(tmp_path)} == {stopped_after}
    assert stopped_after < 16
    hurry()
    again = [numbered(TRAIN, rank, "--shards", "2", "--max-restarts", "1", args=(2, 0.3)) for rank in (0, 1)]
    both(*again)
    assert {len(steps) for steps in by_rank(tmp_path)} == {16}  # no step was done twice
    assert read_weights(*(each.out for each in again)) == alone(2, shards=2)


def by_rank(directory):
    found = read_steps(directory)
    return [[one for one in found if one[0] == rank] for rank in (0, 1)]


@pytest.mark.long
def test_a_second_signal_ends_one_nodes_processes_at_once_and_the_others_end_too(numbered, tmp_path):
    slow = TRAIN.replace("        step += 1", "        step += 1\n        time.sleep(60 * (step == 4))")
    nodes = [numbered(slow, rank, args=(3, 0.1)) for rank in (0, 1)]
    until(lambda: len(read_steps(tmp_path)) == 6)
    time.sleep(0.5)
    nodes[1].process.send_signal(signal.SIGTERM)
    time.sleep(3)
    assert nodes[1].process.poll() is None
    nodes[1].process.send_signal(signal.SIGTERM)
    assert nodes[1].wait() == 143
    assert "The run was NOT saved" in nodes[1].err
    assert nodes[0].wait() == 143
    assert "stopped by signal 15 on" in nodes[0].err


@pytest.mark.long
def test_a_node_that_is_told_to_go_leaves_the_run_saved_and_the_others_go_on_from_there(coming, alone, hurry, tmp_path):
    options = ("--shards", "2", "--checkpoint-every", "off")
    first = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: "keeps the rendezvous store" in first.err)
    second = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: sum(size == 2 for _, size, _ in read_steps(tmp_path)) > 4)
    second.process.send_signal(signal.SIGTERM)
    assert second.wait() == 75
    hurry()
    assert first.wait() == 0, first.err
    assert " leaves: " in first.err
    steps = read_steps(tmp_path)
    assert len(steps) == 8 * 8 * 2  # each shard's part of each step: no step was done twice
    assert {size for _, size, _ in steps} == {1, 2}
    assert read_weights(first.out) == alone(8, shards=2)


@pytest.mark.long
def test_no_step_is_done_twice_for_a_node_that_comes(coming, alone, hurry, tmp_path):
    options = ("--shards", "2", "--checkpoint-every", "off")
    first = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: "more nodes: 1 of 1 to 2 is here" in first.err)
    wait_for_no_more(coming.port)
    until(lambda: read_steps(tmp_path))
    second = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: read_steps(tmp_path)[-1][1] == 2)
    hurry()
    both(first, second)
    assert "a node joined: restarting all workers" in first.err
    assert len(read_steps(tmp_path)) == 8 * 8 * 2
    assert read_weights(first.out, second.out) == alone(8, shards=2)


@pytest.mark.long
def test_a_spare_node_says_that_it_waits_for_its_turn_and_takes_a_lost_ones_place(coming, alone, hurry, tmp_path):
    options = ("--shards", "4", "--checkpoint-every", "4", "--timeout", "20")
    first = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: "keeps the rendezvous store" in first.err)
    second = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: any(size == 2 for _, size, _ in read_steps(tmp_path)))
    spare = coming(TRAIN, *options, args=(8, 0.4))
    until(lambda: "its turn: 2 of 1 to 2" in spare.err)
    seen = len(read_steps(tmp_path))
    second.kill()
    until(lambda: any(size == 2 and rank == 1 for rank, size, _ in read_steps(tmp_path)[seen + 4 :]))
    hurry()
    both(first, spare)
    assert read_steps(tmp_path)[-1][1] == 2
    assert read_weights(first.out, spare.out) == alone(8)


@pytest.mark.long
def test_runs_with_names_of_their_own_meet_at_one_endpoint(coming):
    lone = coming(TALK, "--rdzv-id", "one", nnodes="2")
    until(lambda: "keeps the rendezvous store" in lone.err)
    others = [coming(TALK, "--rdzv-id", "other", nnodes="2") for _ in range(2)]
    both(*others)
    assert [json.loads(each.out)["TORCHELASTIC_RUN_ID"] for each in others] == ["other"] * 2
    both(lone, coming(TALK, "--rdzv-id", "one", nnodes="2"))


MEETS_AND_IS_LOST = """
import os, sys
from lockstep._launch.elastic.connection import open_connection
from lockstep._launch.elastic.dynamic_rendezvous import DynamicRendezvous
from lockstep._launch.elastic.waiter import Stop
from lockstep._launch.endpoint import find_endpoint
from lockstep._launch.nodes import plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.secret import shared_secret
nodes = plan_nodes(LaunchOptions(nnodes="2:3", rdzv_endpoint=sys.argv[1]))
connection = open_connection(find_endpoint(nodes, shared_secret(nodes, None, None, None)), 100.0, Stop())
try:
    DynamicRendezvous(connection).meet(None, None)  # there is nothing that it could tell the others
finally:
    os._exit(0)
"""


@pytest.mark.long
def test_a_launcher_that_is_lost_between_meeting_and_start_is_left_behind(coming, tmp_path):
    first = coming(TALK, "--timeout", "100", nnodes="2:3")
    until(lambda: "more nodes: 1 of 2 to 3 is here" in first.err)
    wait_for_no_more(coming.port)
    where = f"127.0.0.1:{coming.port}"
    subprocess.run([sys.executable, "-c", MEETS_AND_IS_LOST, where], cwd=tmp_path, check=True, timeout=100)
    until(lambda: re.search("did not start .* 10 s", first.err))
    second = coming(TALK, "--timeout", "100", nnodes="2:3")
    both(first, second)
    assert [json.loads(node.out)["WORLD_SIZE"] for node in (first, second)] == ["2", "2"]


class _Exploit:
    """What whoever loads the pickle of it executes."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return Path.touch, (Path(self._path),)


def test_what_a_stranger_writes_into_the_store_is_never_executed(coming, tmp_path):
    # As tried with success on torchelastic, which unpickles whatever stands there.
    first = coming(TALK, nnodes="2")
    until(lambda: "1 of 2 is here" in first.err)
    store = connect(coming.port)
    done = tmp_path / "executed"
    store.set("torch.rendezvous.none", base64.b64encode(pickle.dumps(_Exploit(str(done)))))
    second = coming(TALK, nnodes="2")
    for node in (second, first):
        assert node.wait() == 1, node.err
        assert node.codes == ["store-entry-forged"]
        # the first, which keeps the store, need not wait for others any longer
        store.set("lockstep/none/begun", "1")
    assert not done.exists()


@pytest.mark.long
def test_what_a_stranger_writes_while_a_run_goes_on_ends_it_with_the_reason(coming):
    held = TALK.replace("dist.destroy_process_group()", "import time; time.sleep(30)\ndist.destroy_process_group()")
    nodes = [coming(held, "--timeout", "20") for _ in range(2)]
    until(lambda: all(node.out for node in nodes))
    store = connect(coming.port)
    store.set("torch.rendezvous.none", "anything")
    for node in nodes:
        assert node.wait() == 1, node.err
    assert any(node.codes == ["store-entry-forged"] for node in nodes), [node.err for node in nodes]


@pytest.mark.long
def test_launchers_that_do_not_share_a_directory_are_told_what_to_share(numbered, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    first = numbered(TALK, 0, "--timeout", "60")
    second = numbered(TALK, 1, "--timeout", "60", "--run-dir", "elsewhere/run")
    assert second.wait() == 2
    assert second.codes == ["secret-unknown"]
    assert f"{tmp_path}/elsewhere/.lock" in second.err
    first.process.terminate()
    assert first.wait() == 143
    assert not list(tmp_path.glob(".lockstep-*"))


PLAIN = """
    import datetime, os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=17))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for step in range(10000):
        if step == 20 and dist.get_rank() == 1:
            time.sleep(3600)
        model(torch.ones(8, 4)).sum().backward()
        time.sleep(0.02)
"""


@pytest.mark.longest
@pytest.mark.long
def test_a_stuck_rank_that_others_of_its_node_wait_for_is_named_in_a_script_that_knows_nothing_of_lockstep(numbered):
    first, second = numbered(PLAIN, 0), numbered(PLAIN, 1, "--nproc", "2")
    assert (first.wait(), second.wait()) != (0, 0)
    missing = r"no progress for \d+ s: rank 2 waits for rank 1\.\n  rank 1 on \S+ \(pid \d+\): in the script, after "
    assert re.search(f"WARNING: {missing}", second.err), second.err
    assert re.search(f"error: {missing}", first.err), first.err
