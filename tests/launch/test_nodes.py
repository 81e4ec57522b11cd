"""Several machines as the command line says it: what is refused before anything starts, and who
listens where."""

import socket
from pathlib import Path

import pytest
from launch_helpers import free_port, listening

from lockstep._base.errors import ConfigError
from lockstep._launch.endpoint import find_endpoint, introduce
from lockstep._launch.nodes import DEFAULT_PORT, plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.secret import SharedSecret


def plan(**options):
    return plan_nodes(LaunchOptions(**options))


HERE = {"nnodes": "2", "node_rank": 0, "master_addr": "127.0.0.1"}


@pytest.mark.parametrize(
    "options",
    [{}, {"nnodes": "1"}, {"nnodes": "1:1"}, {"nnodes": "1", "node_rank": 0, "master_addr": "one", "master_port": 29501}],
)
def test_one_machine_is_one_machine_however_it_is_said(options):
    assert plan(**options) is None


def test_nodes_with_numbers_meet_at_the_first_and_all_come():
    nodes = plan(**{**HERE, "node_rank": 1})
    assert (nodes.least, nodes.most, nodes.node_rank, nodes.is_elastic) == (2, 2, 1, False)
    assert nodes.endpoint == f"127.0.0.1:{DEFAULT_PORT}"


def test_nodes_without_numbers_meet_at_an_endpoint_and_may_come_and_go():
    nodes = plan(nnodes="1:4", rdzv_endpoint="[::1]:2940", rdzv_id="mine")
    assert (nodes.least, nodes.most, nodes.node_rank, nodes.is_elastic) == (1, 4, None, True)
    assert (nodes.endpoint, nodes.run_id) == ("[::1]:2940", "mine")


def test_a_node_rank_means_what_it_says_also_with_an_endpoint():
    assert plan(nnodes="2", node_rank=1, rdzv_endpoint="one:29400", rdzv_backend="c10d").node_rank == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nnodes": "two"}, "--nnodes two: give a number of machines"),
        ({"nnodes": "3:2"}, "MIN:MAX"),
        ({"nnodes": "2"}, "where is their rendezvous"),
        ({**HERE, "node_rank": None}, "--node-rank is missing: which of the 2 nodes is this, from 0 to 1"),
        ({**HERE, "node_rank": 2}, "numbered from 0 to 1"),
        ({**HERE, "master_port": 70000}, "--master-port 70000: ports go from 1 to 65535"),
        ({**HERE, "rdzv_endpoint": "one:29400"}, "both give the rendezvous endpoint"),
        ({**HERE, "nnodes": "1:2"}, "--node-rank with --nnodes 1:2"),
        ({"nnodes": "1:2", "master_addr": "one"}, "--master-addr with --nnodes 1:2"),
        ({"nnodes": "2", "rdzv_endpoint": "one:port"}, "--rdzv-endpoint one:port: give HOST:PORT"),
        ({"nnodes": "2", "rdzv_endpoint": "one:0"}, "from 1 to 65535"),
        ({"nnodes": "2", "rdzv_endpoint": "one", "rdzv_backend": "etcd"}, "--rdzv-backend etcd"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options, words):
    with pytest.raises(ConfigError) as caught:
        plan(**options)
    assert words in str(caught.value)


SECRET = SharedSecret(given=None, path=Path("not looked at"))


def find(**options):
    return find_endpoint(plan(**options), SECRET)


def test_a_host_that_nobody_knows_is_an_error_at_once_on_every_node():
    for rank in (0, 1):
        with pytest.raises(ConfigError, match=r"cannot resolve 'no-such-host\.invalid'.*getent hosts"):
            find(nnodes="2", node_rank=rank, master_addr="no-such-host.invalid")


def test_node_0_must_be_where_the_nodes_meet():
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7.* is not an address of this machine: the rendezvous is at node 0"):
        find(nnodes="2", node_rank=0, master_addr="192.0.2.7")


def test_a_port_in_use_is_an_error_at_once():
    with (
        listening() as port,
        pytest.raises(ConfigError, match=rf"cannot listen at 127.0.0.1:{port} .*another --master-port"),
    ):
        find(**HERE, master_port=port)


def test_of_two_nodes_on_one_machine_the_first_keeps_the_store():
    port = free_port()
    first = find(nnodes="1:2", rdzv_endpoint=f"127.0.0.1:{port}")
    with first.listener:
        second = find(nnodes="1:2", rdzv_endpoint=f"127.0.0.1:{port}")
        assert first.listener.getsockname() == ("127.0.0.1", port)
        assert second.listener is None
        assert first.local_address == second.local_address == "127.0.0.1"


def test_it_is_told_who_listens_where_and_that_there_is_no_password(capfd):
    port = free_port()
    nodes = plan(**HERE, master_port=port)
    endpoint = find_endpoint(nodes, SECRET)
    with endpoint.listener:
        introduce(endpoint)
    told = capfd.readouterr().err
    assert f"listens at 127.0.0.1:{port}, which only this machine can reach" in told
    assert "no password" in told
    introduce(find(**{**HERE, "node_rank": 1}, master_port=port))
    assert f"is node 1 of 2, and joins the rendezvous at 127.0.0.1:{port}" in capfd.readouterr().err


@pytest.fixture
def named_this(monkeypatch):
    """This machine's name is ``this``, as in Debian's /etc/hosts: with 127.0.1.1."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **options: real("127.0.1.1" if host == "this" else host, *rest, **options)
    )


def test_a_name_of_this_machine_that_is_loopback_here_alone_does_not_shut_others_out(named_this, capfd):
    nodes = plan(nnodes="2", node_rank=0, master_addr="this", master_port=free_port())
    endpoint = find_endpoint(nodes, SECRET)
    with endpoint.listener:
        assert endpoint.listens_at is None
        assert endpoint.listener.getsockname()[0] in ("::", "0.0.0.0")
        introduce(endpoint)
    assert "all network interfaces (this means 127.0.1.1 here)" in capfd.readouterr().err
