"""Several machines as the command line says it: what is refused before anything starts, and who
listens where."""

import socket
from pathlib import Path

import pytest
from codes import raises
from launch_helpers import free_port, listening

from lockstep._base.errors import ConfigError
from lockstep._launch import endpoint as endpoint_module
from lockstep._launch.endpoint import find_endpoint, introduce
from lockstep._launch.nodes import DEFAULT_PORT, plan_nodes
from lockstep._launch.options import LaunchOptions
from lockstep._launch.secret import SharedSecret
from lockstep._world.machine import names


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
    ("options", "code"),
    [
        ({"nnodes": "two"}, "nnodes-invalid"),
        ({"nnodes": "3:2"}, "nnodes-invalid"),
        ({"nnodes": "2"}, "endpoint-missing"),
        ({**HERE, "node_rank": None}, "node-rank-missing"),
        ({**HERE, "node_rank": 2}, "node-rank-out-of-range"),
        ({**HERE, "master_port": 70000}, "master-port-invalid"),
        ({**HERE, "rdzv_endpoint": "one:29400"}, "endpoint-set-twice"),
        ({**HERE, "nnodes": "1:2"}, "elastic-nodes-numbered"),
        ({"nnodes": "1:2", "master_addr": "one"}, "elastic-nodes-numbered"),
        ({"nnodes": "2", "rdzv_endpoint": "one:port"}, "rdzv-endpoint-invalid"),
        ({"nnodes": "2", "rdzv_endpoint": "one:0"}, "rdzv-endpoint-invalid"),
        ({"nnodes": "2", "rdzv_endpoint": "one", "rdzv_backend": "etcd"}, "rdzv-backend-unknown"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options, code):
    with raises(ConfigError, code):
        plan(**options)


SECRET = SharedSecret(given=None, path=Path("not looked at"))


def find(**options):
    return find_endpoint(plan(**options), SECRET)


@pytest.mark.parametrize(
    "host", ["no-such-host.invalid", "tcp://one", "one:29500", "two words", "10.0.0.256", "a..b", "-", "x" * 64]
)
def test_a_host_that_can_never_resolve_is_an_error_at_once_on_every_node(host):
    for rank in (0, 1):
        with raises(ConfigError, "host-unresolved"):
            find(nnodes="2", node_rank=rank, master_addr=host)


@pytest.fixture
def records(monkeypatch):
    """``records[host] = [ADDRESS or None, ...]``: what each look-up of a name finds, the last for
    ever; None: nothing."""
    found, real = {}, socket.getaddrinfo

    def look_up(host, *rest, **options):
        if host not in found:
            return real(host, *rest, **options)
        address = found[host].pop(0) if len(found[host]) > 1 else found[host][0]
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(address, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(names, "_PAUSE_S", 0.02)
    return found


@pytest.mark.parametrize("host", ["127.1", "node.invalid", "a_-"])
def test_what_this_machine_can_resolve_is_never_refused_for_its_spelling(records, host):
    if host != "127.1":  # in a file of hosts, say
        records[host] = ["127.0.0.1"]
    assert find(nnodes="2", node_rank=1, master_addr=host).listener is None


def test_an_address_of_another_machine_is_an_error_of_node_0_at_once():
    with raises(ConfigError, "node-0-elsewhere"):
        find(nnodes="2", node_rank=0, master_addr="192.0.2.7")


def test_a_port_in_use_is_an_error_at_once():
    with listening() as port, raises(ConfigError, "port-in-use"):
        find(**HERE, master_port=port)


@pytest.mark.parametrize("where", [{"master_addr": "pod-0.train", "node_rank": 1}, {"rdzv_endpoint": "pod-0.train"}])
def test_a_name_that_does_not_resolve_yet_is_waited_for(records, capfd, where):
    records["pod-0.train"] = [None, None, "192.0.2.7"]
    endpoint = find(nnodes="2", **where)
    assert endpoint.listener is None
    assert capfd.readouterr().err.count("'pod-0.train'") == 1


def test_a_name_that_does_not_resolve_in_time_is_an_error(records):
    records["pod-0.train"] = [None]
    with raises(ConfigError, "host-unresolved"):
        find_endpoint(plan(nnodes="2", node_rank=1, master_addr="pod-0.train"), SECRET, 0.2)


@pytest.mark.parametrize("now", ["127.0.0.1", "127.0.0.2"])
def test_node_0_waits_while_its_own_name_still_means_another_machine(records, capfd, now):
    records["pod-0.train"] = ["192.0.2.7"] * 6 + [now]
    with find(nnodes="2", node_rank=0, master_addr="pod-0.train", master_port=free_port()).listener as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")
    assert capfd.readouterr().err.count("'pod-0.train', which means 192.0.2.7") == 1


def test_a_name_whose_address_leads_here_from_elsewhere_is_listened_to_on_all_addresses(records):
    records["service.train"] = ["192.0.2.7"]  # as a Service's virtual one
    nodes = plan(nnodes="2", node_rank=0, master_addr="service.train", master_port=free_port())
    endpoint = find_endpoint(nodes, SECRET, 0.2)
    with endpoint.listener as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")
        assert (endpoint.listens_at, endpoint.store_host) == (None, "127.0.0.1")


def test_a_name_of_another_machine_that_keeps_the_store_is_an_error_of_node_0(records, monkeypatch):
    records["other.train"] = ["192.0.2.7"]
    with listening() as port:
        nodes = plan(nnodes="2", node_rank=0, master_addr="other.train", master_port=port)
        real = socket.create_connection
        there = lambda address, **options: real(("127.0.0.1", address[1]), **options)  # noqa: E731
        monkeypatch.setattr(socket, "create_connection", there)
        with raises(ConfigError, "node-0-elsewhere"):
            find_endpoint(nodes, SECRET, 0.2)


def test_a_name_that_means_nothing_any_more_while_node_0_waits_is_an_error(records):
    records["pod-0.train"] = ["192.0.2.7"] * 6 + [None]
    with raises(ConfigError, "host-unresolved"):
        find_endpoint(plan(nnodes="2", node_rank=0, master_addr="pod-0.train", master_port=free_port()), SECRET, 0.3)


def test_of_nodes_without_numbers_only_the_one_of_that_name_waits_to_keep_the_store(records, monkeypatch):
    records["pod-0.train"] = ["192.0.2.7"] * 5 + ["127.0.0.1"]
    monkeypatch.setattr(endpoint_module, "_ANSWER_S", 0.1)
    nodes = plan(nnodes="1:2", rdzv_endpoint=f"pod-0.train:{free_port()}")
    assert find_endpoint(nodes, SECRET).listener is None
    records["pod-0.train"] = ["192.0.2.7"] * 9 + ["127.0.0.1"]
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-0")
    with find_endpoint(nodes, SECRET).listener as listener:
        assert listener.getsockname()[1] == nodes.port


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
    assert f"listens at 127.0.0.1:{port}" in told
    assert "no password" in told
    introduce(find(**{**HERE, "node_rank": 1}, master_port=port))
    told = capfd.readouterr().err
    assert "node 1 of 2" in told
    assert f"127.0.0.1:{port}" in told


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
