"""Processes meet wherever they are told to, in any order, whatever earlier runs have left there, or
say why they cannot."""

import itertools
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import rendezvous_scripts as scripts
from codes import raises

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError, LaunchError, PeerError
from lockstep._world.comm import store, tcp
from lockstep._world.comm.machines import placed
from lockstep._world.comm.store import rendezvous_url
from lockstep._world.comm.waiter import Waiter
from lockstep._world.environment import World
from lockstep._world.machine.addresses import SOMEWHERE, source_address

pytestmark = pytest.mark.timeout(90)


@pytest.fixture
def place(tmp_path):
    """``place(kind)``: the URL of a place of that kind where nobody has met."""

    def find(kind):
        if kind == "file":
            (tmp_path / "meet").mkdir()
            return f"file://{tmp_path}/meet/here"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://localhost:{probe.getsockname()[1]}"

    return find


def left_at(url):
    """What is in the directory of a file:// place, besides the named file."""
    path = Path(url.removeprefix("file://"))
    return [found.name for found in path.parent.iterdir() if found != path]


@pytest.mark.parametrize(("kind", "delays"), [("tcp", (0.4, 0.0, 0.2)), ("file", (0.0, 0.2, 0.4))])
def test_ranks_started_by_hand_meet_in_any_order_and_see_who_shares_the_machine(crew, place, kind, delays):
    url = place(kind)
    found = crew(3, scripts.meet, url, delays)
    assert found == [(7.0, (rank, 3, 0, 1), "lo") for rank in range(3)]
    assert kind == "tcp" or left_at(url) == []


def test_ranks_started_by_hand_may_say_who_they_are_by_variables(crew, place):
    assert [one[0] for one in crew(2, scripts.meet_by_variables, place("file"), {})] == [3.0, 3.0]
    port = place("tcp").rpartition(":")[2]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    assert [one[0] for one in crew(2, scripts.meet_by_variables, "env://", told)] == [3.0, 3.0]


def test_processes_that_mpich_starts_on_one_machine_find_each_other(crew, tmp_path):
    (tmp_path / "tmp").mkdir()
    assert crew(3, scripts.meet_under_mpich, tmp_path / "tmp") == [
        ("mpirun", (7.0, (rank, 3, 0, 1), "lo")) for rank in range(3)
    ]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_tasks_of_srun_on_one_node_open_no_port_and_leave_nothing(crew, tmp_path):
    (tmp_path / "tmp").mkdir()
    found = crew(3, scripts.meet_under_srun, tmp_path / "tmp", ["any"])
    assert found == [("slurm", (7.0, (rank, 3, 0, 1))) for rank in range(3)]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_tasks_of_srun_on_several_nodes_meet_at_the_first_one(crew, tmp_path):
    found = crew(4, scripts.meet_under_srun, tmp_path, ["localhost", "other"], str(os.getpid()))
    assert found == [("slurm", (15.0, (rank % 2, 2, rank // 2, 2))) for rank in range(4)]


def test_the_same_processes_can_meet_again_and_again_in_one_place(crew, place):
    url = place("file")
    assert crew(2, scripts.meet_again_and_again, url, 3) == [[3.0] * 3] * 2
    assert left_at(url) == []


def test_lockstep_run_and_launch_take_the_place_as_a_setting(crew, place, run_here):
    source = """
        import lockstep, torch
        team = lockstep.join()
        print(team.config.init_method, team.all_reduce(torch.ones(())).item())
    """
    url = place("file")
    options = ("--nproc-per-node", "2", "--init-method", url, "--threads", "1", "--max-restarts", "1")
    done = run_here(source, *options)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{url} 2.0"] * 2


# What an earlier run has left


def test_what_a_killed_run_has_left_is_named_and_the_next_runs_without_it(crew, place):
    url = place("file")
    with pytest.raises(LaunchError):
        crew(2, scripts.meet_and_die, url)
    [left] = Path(url.removeprefix("file://") + ".lockstep").iterdir()
    told = [one[0] for one in crew(2, scripts.come_as, url, [(0, 2), (1, 2)])]
    assert any("ConfigError" in one and str(left) in one for one in told)
    assert all("Error" in one for one in told)
    left.unlink(missing_ok=True)
    assert [one[0] for one in crew(2, scripts.meet, url)] == [3.0, 3.0]


# What cannot be


@pytest.mark.parametrize(
    "url", ["localhost:29500", "tcp://localhost", "tcp://h:99999", "tcp://h:1/x", "file://x/y", "file://", ""]
)
def test_a_place_that_cannot_be_meant_is_refused(url):
    with raises(ConfigError, "init-method-invalid"):
        RunConfig(init_method=url)


def test_a_rank_that_does_not_come_is_named_after_the_timeout(crew, place):
    first, second, _ = crew(3, scripts.come_as, place("tcp"), [(0, 3), (1, 3), None])
    assert "PeerError rendezvous-timeout: rank 0 of 3 " in first[0]
    assert "for rank 2" in first[0]
    # Over TCP, rank 0 keeps the store, and may give up first.
    assert re.search(r"PeerError (rendezvous-timeout: .* for ranks? (0, )?2|store-lost: )", second[0]), second[0]
    assert all(took_s > 2.5 for _, took_s in (first, second))


def test_without_rank_0_the_others_say_so_and_leave_nothing(crew, place):
    url = place("file")
    ((told, _),) = crew(1, scripts.come_as, url, [(1, 2)], 1.0)
    assert "PeerError" in told
    assert "for rank 0" in told
    assert left_at(url) == []


def test_a_rank_that_has_given_up_is_not_among_those_that_are_there(place, monkeypatch):
    monkeypatch.setattr(store, "_openings", itertools.repeat(0))  # as if each were a process of its own
    url = place("file")

    def come(rank, timeout_s):
        try:
            return store.open_store(
                RunConfig(init_method=url, timeout_s=timeout_s), World(rank=rank, world_size=3, launcher="hand")
            ).world.rank
        except (PeerError, ConfigError) as error:
            return error.code

    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(come, 0, 20.0)
        for rank in (1, 1, 2):
            assert come(rank, 0.2) == "rendezvous-timeout"
        others = list(threads.map(come, (1, 2), (20.0, 20.0)))
        assert [first.result(), *others] == [0, 1, 2]
    store.leave_store()


def test_two_processes_of_one_rank_are_told(crew, place):
    told = [one[0] for one in crew(3, scripts.come_as, place("file"), [(0, 3), (1, 3), (1, 3)])]
    assert any("ConfigError rank-taken: " in one and "rank 1" in one for one in told)
    assert all("Error" in one for one in told)


def test_processes_of_runs_of_different_sizes_are_told(crew, place):
    told = [one[0] for one in crew(2, scripts.come_as, place("tcp"), [(0, 2), (1, 3)])]
    assert any("ConfigError world-sizes-differ: " in one and "of 3" in one and "of 2" in one for one in told)
    assert all("Error" in one for one in told)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("taken", r"ConfigError port-in-use: "),
        ("silent", r"PeerError rendezvous-timeout: "),
    ],
)
def test_a_port_that_another_program_uses_is_told(crew, place, kind, words):
    ((told, _),) = crew(1, scripts.come_to_a_place_in_use, place("tcp"), kind)
    assert re.match(words, told, re.DOTALL), told


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("tcp://no-such-host.invalid:29500", "ConfigError host-unresolved: "),
        ("tcp://127.0.0.1:9", "Connection refused"),
        ("file:///no/such/directory/file", "ConfigError rendezvous-file-unusable: "),
    ],
)
def test_a_place_that_cannot_be_reached_is_told(crew, url, words):
    ((told, _),) = crew(1, scripts.come_as, url, [(1, 2)], 1.0)
    assert words in told


def test_a_place_of_another_user_is_not_trusted(crew, place, tmp_path):
    url = place("file")
    left = Path(url.removeprefix("file://") + ".lockstep")
    (tmp_path / "mine").mkdir()
    left.symlink_to(tmp_path / "mine")
    ((told, _),) = crew(1, scripts.come_as, url, [(0, 1)])
    assert "ConfigError" in told
    assert list((tmp_path / "mine").iterdir()) == []
    if os.geteuid() == 0:
        left.unlink()
        left.mkdir()
        os.chown(left, 12345, 12345)
        ((told, _),) = crew(1, scripts.come_as, url, [(0, 1)])
        assert "ConfigError" in told


def test_on_one_machine_nothing_listens_to_the_network(crew, place):
    for found in crew(2, scripts.listening_while_open, place("tcp")):
        assert set(found) <= {"127.0.0.1"}


@pytest.mark.parametrize("kind", ["outward", "loopback", "private"])
def test_rank_0_listens_on_the_address_that_its_host_means_and_says_so_once(kind, capfd):
    host = source_address(SOMEWHERE) if kind == "outward" else "127.0.0.1"
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    try:
        for _ in range(2):
            tcp.tcp_store(host, port, Waiter(0, 1, "here", 20.0), is_private=kind == "private")
        found = psutil.Process().net_connections(kind="inet")
        listens = [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port]
    finally:
        tcp._stores.pop((host, port, 0), None)
    said = capfd.readouterr().err
    if kind == "loopback":  # which may be so on rank 0's machine alone
        assert listens in (["::"], ["0.0.0.0"])
        assert f"port {port} on all network interfaces" in said
    else:
        assert listens == [host]
        assert said.count(f"it listens at {host}:{port} (") == (kind == "outward")
    assert said.count("password") == (kind != "private")


def pause_for_ever(waiter):
    while True:
        waiter.pause(lambda: [0, 3], hint="a hint")


def test_who_waits_says_so_after_a_moment_and_gives_up_in_the_end(monkeypatch, capsys):
    monkeypatch.setattr("lockstep._world.comm.waiter._TELL_AFTER_S", 0.05)
    waiter = Waiter(1, 20, "tcp://h:1", 0.3)
    with raises(PeerError, "rendezvous-timeout") as caught:
        pause_for_ever(waiter)
    assert "for ranks 0, 3 (a hint)" in str(caught.value)
    assert waiter.remaining_s == 0
    assert capsys.readouterr().err.count("at tcp://h:1 for ranks 0, 3 (a hint)") == 1


# Where to meet, and who is where


def world(**fields):
    return World(**{"rank": 1, "world_size": 4, "local_world_size": 4, "launcher": "env", **fields})


@pytest.mark.parametrize(
    ("init_method", "fields", "expected"),
    [
        ("tcp://h:1", {}, "tcp://h:1"),
        ("file:///x", {"master": ("h", "2")}, "file:///x"),
        (None, {"master": ("h", "2")}, "tcp://h:2"),
        ("env://", {"master": ("::1", "2")}, "tcp://[::1]:2"),
        (None, {"launcher": "torchrun", "master": ("h", "2")}, "env://"),
        ("tcp://h:1", {"launcher": "torchrun", "master": ("h", "2")}, "tcp://h:1"),
        (None, {"launcher": "mpirun", "job_dir": "/tmp/job"}, "file:///tmp/job"),
        (None, {"launcher": "mpirun", "job_dir": "/tmp/job", "master": ("h", "2")}, "tcp://h:2"),
    ],
)
def test_a_place_that_is_named_comes_before_what_the_launcher_says(init_method, fields, expected):
    assert rendezvous_url(init_method, world(**fields)) == expected


@pytest.mark.parametrize(
    ("init_method", "fields", "code"),
    [
        ("tcp://h:1", {"launcher": "python"}, "rank-unknown"),
        (None, {}, "rendezvous-missing"),
        ("env://", {}, "rendezvous-missing"),
        (None, {"master": ("h", "")}, "master-port-invalid"),
        (None, {"master": ("h", "x")}, "master-port-invalid"),
        (None, {"launcher": "mpirun", "local_world_size": 2}, "rendezvous-missing"),
    ],
)
def test_processes_that_do_not_know_where_to_meet_are_told(init_method, fields, code):
    with raises(ConfigError, code):
        rendezvous_url(init_method, world(**fields))


def test_places_are_counted_by_machine_and_only_what_nobody_said():
    machines = ["b", "a", "b", "a", "b"]
    unsaid = frozenset({"local_rank", "local_world_size", "node_rank", "num_nodes"})
    found = placed(World(rank=4, world_size=5, unsaid=unsaid), machines)
    assert (found.local_rank, found.local_world_size, found.node_rank, found.num_nodes) == (2, 3, 0, 2)
    found = placed(World(rank=3, world_size=5, local_rank=7, unsaid=unsaid - {"local_rank"}), machines)
    assert (found.local_rank, found.local_world_size, found.node_rank, found.num_nodes) == (7, 2, 1, 2)
    assert found.unsaid == frozenset()
