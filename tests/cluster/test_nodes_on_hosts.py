"""``lockstep run`` on several hosts: real names and addresses, links that break, power that is
lost."""

import contextlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
from node_scripts import TRAIN, read_steps, read_weights

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

PORT = "29500"
EPOCHS = 12
ELASTIC = ("--shards", "4", "--checkpoint-every", "4")


def until(condition, timeout_s=120.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.05)
    return found


class Node:
    """The launcher on one host, which ``start`` starts."""

    def __init__(self, host, directory, start):
        self.host = host
        self._paths = [directory / f"{host.name}-{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        with self._paths[0].open("w") as out, self._paths[1].open("w") as err:
            self.process = start(cwd=directory, stdout=out, stderr=err)

    @property
    def out(self):
        return self._paths[0].read_text()

    @property
    def err(self):
        return self._paths[1].read_text()

    def wait(self, timeout_s=150.0):
        """The exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.host.name}: not done after {timeout_s} s\n{self.out}\n{self.err}", pytrace=False)


@pytest.fixture
def node(cluster, nurseries, tmp_path):
    """``node(n, source, *options, args=())``: ``lockstep run`` on host n, of a script that all
    hosts see."""
    nodes = []

    def start(number, source, *options, args=(), name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        host, words = cluster.hosts[number], [*options, str(path), *map(str, args)]
        nodes.append(Node(host, tmp_path, partial(nurseries.start, host, words)))
        return nodes[-1]

    yield start
    for each in nodes:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(10)


@pytest.fixture
def numbered(node):
    def start(number, source, *options, nnodes=2, at="host0", **more):
        where = ("--nnodes", str(nnodes), "--node-rank", str(number), "--master-addr", at, "--master-port", PORT)
        return node(number, source, *where, *options, **more)

    return start


@pytest.fixture
def coming(node):
    def start(number, source, *options, nnodes="1:3", **more):
        return node(number, source, "--nnodes", nnodes, "--rdzv-endpoint", f"host0:{PORT}", *options, **more)

    return start


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def alone(node, cluster, known):
    """``alone()``: the weights of one process that nobody disturbs."""

    def train():
        if not known:
            is_on = next(number for number, host in enumerate(cluster.hosts) if host.pid)
            one = node(is_on, TRAIN, "--fresh", "--shards", "4", "--run-dir", "alone", args=(EPOCHS, 0))
            assert one.wait() == 0, one.err
            known["weights"] = read_weights(one.out)
        return known["weights"]

    return train


@pytest.fixture
def hurry(tmp_path):
    """``hurry()``: let TRAIN come to its end."""
    return (tmp_path / "hurry").touch


def sizes(directory):
    """The world sizes that steps were made with, in order, each once in a row."""
    found = [size for _, size, _ in read_steps(directory)]
    return [size for size, before in zip(found, [0, *found], strict=False) if size != before]


def num_last(directory, size):
    """How many of the newest steps were made with this world size. (Nodes that start together need
    not come together: the first waits a second for the other, and goes on again with both.)"""
    found = [found == size for _, found, _ in read_steps(directory)]
    return found[::-1].index(False) if False in found else len(found)


def both(first, second, status=0):
    assert (first.wait(), second.wait()) == (status, status), first.err + second.err


def test_two_hosts_come_to_the_weights_of_one_process(numbered, alone, hurry, cluster, tmp_path):
    second = numbered(1, TRAIN, "--nproc", "2", "--shards", "4", args=(EPOCHS, 0.1))
    until(lambda: "waiting at host0:29500 for node 0" in second.err)
    first = numbered(0, TRAIN, "--shards", "4", args=(EPOCHS, 0.1))
    until(lambda: read_steps(tmp_path))
    # `ss` says *:PORT or 0.0.0.0:PORT of what listens on all interfaces
    for host in cluster.hosts[:2]:
        listening = [line.split()[3] for line in host.run(["ss", "-ltnH"]).stdout.splitlines()]
        assert listening
        assert all(place.startswith(f"{host.address}:") for place in listening), listening
        assert (f"{host.address}:{PORT}" in listening) == (host is cluster.hosts[0])
    hurry()
    both(first, second)
    assert "host0:29500 (10.213.0.1, eth0)" in first.err
    assert "3 processes on 2 nodes" in first.err
    assert "host0 (rank 0), host1 (ranks 1 to 2)" in first.err
    assert not cluster.processes()
    assert "gloo on eth0" in first.out + first.err
    assert read_weights(first.out, second.out) == alone()


def test_a_host_that_cannot_see_the_run_directory_is_said_before_training(numbered, cluster, tmp_path):
    (tmp_path / "runs").mkdir()
    cluster.hosts[1].hide(tmp_path / "runs")
    first, second = numbered(0, TRAIN, args=(1, 0)), numbered(1, TRAIN, args=(1, 0))
    both(first, second, 1)
    assert f"{tmp_path}/runs/script-1" in first.err
    assert not read_steps(tmp_path)


def test_another_script_on_a_host_is_said_before_training(numbered, cluster, tmp_path):
    (tmp_path / "script.py").write_text("")
    (tmp_path / "other.py").write_text(textwrap.dedent(TRAIN) + "# another\n")
    cluster.hosts[1].replace(tmp_path / "script.py", tmp_path / "other.py")
    first, second = numbered(0, TRAIN, args=(1, 0)), numbered(1, TRAIN, args=(1, 0))
    both(first, second, 1)
    assert re.search(r"script\.py is \w+ .*host0 .*\w+ .*host1", first.err)
    assert not read_steps(tmp_path)


@contextlib.contextmanager
def cut(host):
    host.cut()
    try:
        yield
    finally:
        host.restore()


def test_a_slow_link_that_is_cut_for_less_than_the_timeout_changes_nothing_nor_do_names_that_resolve_nowhere(
    numbered, alone, hurry, cluster, tmp_path
):
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    for host in cluster.hosts[:2]:
        host.replace(Path("/etc/hosts"), tmp_path / "hosts")
    cluster.hosts[1].limit("500kbit")
    options, at = ("--shards", "4", "--timeout", "60"), cluster.hosts[0].address
    first, second = (numbered(number, TRAIN, *options, at=at, args=(EPOCHS, 0.2)) for number in (0, 1))
    until(lambda: len(read_steps(tmp_path)) > 8)
    with cut(cluster.hosts[1]):
        time.sleep(0.5)  # what was on its way
        before = len(read_steps(tmp_path))
        time.sleep(4)
        assert len(read_steps(tmp_path)) == before
    hurry()
    both(first, second)
    assert "restart" not in first.err
    assert read_weights(first.out, second.out) == alone()


def test_a_link_cut_for_longer_than_the_timeout_ends_the_run_everywhere_and_it_goes_on(
    numbered, alone, hurry, cluster, tmp_path
):
    options = ("--shards", "4", "--timeout", "6", "--checkpoint-every", "4", "--run-dir", "run")
    first, second = (numbered(host, TRAIN, *options, args=(EPOCHS, 0.2)) for host in (0, 1))
    until(lambda: len(read_steps(tmp_path)) > 16)
    with cut(cluster.hosts[1]):
        assert first.wait(40) != 0
        assert second.wait(40) != 0
    assert "host1" in first.err
    assert "kept the rendezvous store" in second.err
    assert not cluster.processes()
    hurry()
    first, second = (numbered(host, TRAIN, *options, args=(EPOCHS, 0.2)) for host in (0, 1))
    both(first, second)
    assert "resumes after step" in first.out + first.err
    assert read_weights(first.out, second.out) == alone()


def test_power_lost_on_a_host_and_back_again_leaves_the_weights_as_they_are(coming, alone, hurry, cluster, tmp_path):
    nodes = [coming(number, TRAIN, *ELASTIC, nnodes="1:2", args=(EPOCHS, 0.2)) for number in (0, 1)]
    until(lambda: num_last(tmp_path, 2) > 16)
    cluster.hosts[1].kill()
    until(lambda: sizes(tmp_path)[-2:] == [2, 1])
    cluster.hosts[1].revive()
    again = coming(1, TRAIN, *ELASTIC, nnodes="1:2", args=(EPOCHS, 0.2))
    until(lambda: sizes(tmp_path)[-3:] == [2, 1, 2])
    hurry()
    both(nodes[0], again)
    assert "host1 (rank 1)" in nodes[0].err
    assert "a node joined: restarting all workers" in nodes[0].err
    assert read_weights(nodes[0].out, again.out) == alone()


def test_without_the_host_that_keeps_the_store_the_others_end_and_the_run_goes_on_elsewhere(
    coming, alone, hurry, cluster, tmp_path
):
    options = (*ELASTIC, "--run-dir", "run")
    nodes = [coming(number, TRAIN, *options, nnodes="1:2", args=(EPOCHS, 0.2)) for number in (0, 1)]
    until(lambda: len(read_steps(tmp_path)) > 16)
    cluster.hosts[0].kill()
    assert nodes[1].wait(60) == 1
    assert "kept the rendezvous store" in nodes[1].err
    assert "from its newest checkpoint" in nodes[1].err
    assert "torch/distributed" not in nodes[1].err
    assert not cluster.hosts[1].processes()
    hurry()
    again = coming(1, TRAIN, "--nproc", "2", *options, nnodes="1", args=(EPOCHS, 0.2))
    assert again.wait() == 0, again.err
    assert read_weights(again.out) == alone()


@pytest.mark.longest
def test_torchrun_starts_lockstep_scripts_on_hosts(cluster, alone, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(TRAIN).replace("lockstep.join()", "lockstep.join(shards=4)"))
    where = ("--nnodes", "2", "--master-addr", "host0", "--master-port", PORT)
    command = (sys.executable, "-m", "torch.distributed.run", *where)
    nodes = []
    for number, host in enumerate(cluster.hosts[:2]):
        words = [*command, "--node-rank", str(number), "script.py", str(EPOCHS), "0"]
        nodes.append(Node(host, tmp_path, partial(host.start, words, stdin=subprocess.DEVNULL)))
    until(lambda: all("weights" in each.out for each in nodes), 90)
    # All workers end at once. torchrun's own launchers wait for each other's end, one of them now
    # and then for minutes.
    launchers = {each.process for each in nodes}
    until(lambda: len(cluster.processes()) <= sum(one.poll() is None for one in launchers))
    with contextlib.suppress(AssertionError):
        until(lambda: all(one.poll() is not None for one in launchers), 30)
    for one in launchers:
        assert one.poll() in (0, None)
        one.kill()
        one.wait(10)
    assert read_weights(*(each.out for each in nodes)) == alone()


@pytest.mark.longest
def test_a_link_that_is_cut_while_nodes_still_wait_for_each_other_is_no_wait_without_end(coming, cluster):
    nodes = [coming(number, TRAIN, nnodes="3:4", args=(1, 0)) for number in (0, 1)]
    until(lambda: all("more nodes: 2 of 3 to 4" in each.err for each in nodes))
    with cut(cluster.hosts[1]):
        assert nodes[1].wait(40) == 1
        assert "host0:29500 has not answered" in nodes[1].err
    nodes[0].process.send_signal(signal.SIGTERM)
    assert nodes[0].wait() == 143
