"""Rounds of many launchers: what each asks of the store does not grow with their number, and all
notice who is silent."""

import collections
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from lockstep._launch.elastic import round as rounds_module
from lockstep._launch.elastic.places import Machine, Start
from lockstep._launch.elastic.round import Round
from lockstep._launch.elastic.signed import SignedStore
from lockstep._launch.elastic.static_rendezvous import StaticRendezvous
from lockstep._launch.elastic.waiter import Stop, Waiter
from lockstep._launch.secret import Secret

pytestmark = pytest.mark.timeout(60)

SECRET = Secret(b"a secret")


class Counting:
    """A store that counts the names in requests."""

    def __init__(self, store):
        self._store = store
        self.names = collections.Counter()

    def __getattr__(self, request):
        answer = getattr(self._store, request)
        if request in ("timeout", "set_timeout"):
            return answer

        def ask(names, *values):
            self.names[request] += 1 if isinstance(names, str) else len(names)
            return answer(names, *values)

        return ask


class Node:
    """A launcher with a number, and its view of the store."""

    def __init__(self, store, number, num_nodes, clock):
        self.store = Counting(store)
        self.signed = SignedStore(self.store, SECRET, "here")
        nodes = SimpleNamespace(node_rank=number, most=num_nodes)
        connection = SimpleNamespace(
            nodes=nodes,
            round_store=lambda count: self.signed.under(f"round-{count}"),
            lost_s=10.0,
            waiter=lambda remedy, timeout_s=None: Waiter("here:1", 60.0, Stop(), remedy),
        )
        self.rendezvous = StaticRendezvous(connection)
        self.heartbeat = SimpleNamespace(also=lambda _: None, silence_s=self.silence_s, answered_at=0.0, beat_s=0.25)
        self.number = number
        self._clock = clock

    def silence_s(self):
        return self._clock.monotonic() - self.heartbeat.answered_at

    def meet(self):
        machine = Machine(host=f"host{self.number}", address=f"10.0.0.{self.number}", num_ranks=2)
        self.place = self.rendezvous.meet(machine, lambda: Start(launch="one", used=0, master_port=1))
        self.round = Round(self.signed.under("round-0"), self.heartbeat, self.place, lambda: 0)

    def beat(self):
        self.round._beat(self.signed)
        self.heartbeat.answered_at = self._clock.monotonic()


@pytest.fixture
def meet(monkeypatch):
    """``meet(num_nodes)``: their launchers, once they have met, and a clock that they go by."""

    def start(num_nodes):
        clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
        monkeypatch.setattr(rounds_module, "time", clock)
        store = HashStore()
        nodes = [Node(store, number, num_nodes, clock) for number in range(num_nodes)]
        with ThreadPoolExecutor(num_nodes) as pool:
            list(pool.map(Node.meet, nodes))
        return nodes, clock

    return start


def test_every_node_learns_its_place_and_can_ask_who_the_others_are(meet):
    nodes, _ = meet(3)
    places = [node.place for node in nodes]
    assert [place.first_rank for place in places] == [0, 2, 4]
    assert {(place.world_size, place.master_addr, place.master_port) for place in places} == {(6, "10.0.0.0", 1)}
    for node in nodes:
        assert [(machine.host, machine.first_rank) for machine in node.round.machines] == [
            ("host0", 0),
            ("host1", 2),
            ("host2", 4),
        ]


def test_what_a_node_asks_of_the_store_does_not_grow_with_their_number(meet):
    asked = {}
    for num_nodes in (4, 16):
        nodes, _ = meet(num_nodes)
        for node in nodes[1:]:
            del node.store.names["check"]  # whether there is an answer, now and then
        meeting = {tuple(sorted(node.store.names.items())) for node in nodes[1:]}
        for node in nodes:
            node.store.names.clear()
            node.beat()
        beats = {tuple(sorted(node.store.names.items())) for node in nodes[1:]}
        asked[num_nodes] = meeting, beats
        assert sum(nodes[0].store.names.values()) <= 2 * num_nodes + 2  # one for all
    assert asked[4] == asked[16]
    meeting, beats = (max(sum(dict(kind).values()) for kind in kinds) for kinds in asked[16])
    # announces itself, and reads its place; and before, the greeting of the store's keeper
    assert meeting == 2
    assert beats <= 3


@pytest.mark.parametrize("silent", [2, 0])
def test_all_notice_a_node_that_is_silent_the_first_one_too(meet, silent):
    nodes, clock = meet(4)
    for _ in range(3):
        for node in nodes:
            node.beat()
    for _ in range(50):
        clock.now += 0.25
        for node in nodes:
            if node.number != silent:
                node.beat()
    for node in nodes:
        if node.number != silent:
            assert node.round.silent(10.0) == [silent]


def test_if_the_first_node_is_silent_the_others_look_for_themselves(meet):
    nodes, clock = meet(4)
    for _ in range(60):
        clock.now += 0.25
        for node in nodes[1:3]:
            node.beat()
    nodes[2].round.done(None)
    nodes[1].beat()
    assert nodes[1].round.silent(10.0) == [0, 3]
    assert nodes[1].round.num_done == 1


def test_all_hear_of_all_that_are_done_and_whether_one_was_asked_to_stop(meet):
    nodes, _ = meet(3)
    for node, status in zip(nodes, (None, 75, None), strict=True):
        node.round.done(status)
    for node in nodes:
        node.beat()
    assert {(node.round.num_done, node.round.has_stopped) for node in nodes} == {(3, True)}


def test_reports_of_nodes_that_are_gone_are_not_waited_for(meet):
    nodes, clock = meet(3)
    for _ in range(20):
        clock.now += 0.25
        for node in nodes[:2]:
            node.beat()
    reports = []
    for node in nodes[:2]:
        node.round.report(rounds_module.Report(is_first=node.number == 0))
    for node in nodes[:2]:
        reports.append(node.round.reports(lambda _: pytest.fail("it waits")))
    assert reports[0] == reports[1]
    assert sorted(reports[0]) == [0, 1]


def test_a_store_that_does_not_answer_for_a_while_makes_no_node_silent(meet):
    nodes, clock = meet(3)
    for _ in range(3):
        clock.now += 0.25
        for node in nodes:
            node.beat()
    nodes[0].beat()  # has seen the newest of all
    clock.now += 60.0
    assert [node.round.silent(10.0) for node in nodes] == [[], [], []]
    for node in nodes:
        node.beat()
        assert node.round.silent(10.0) == []


def test_the_report_of_a_node_that_has_left_counts(meet):
    nodes, clock = meet(3)
    nodes[2].round.report(rounds_module.Report(signal=15))
    for _ in range(20):
        clock.now += 0.25
        for node in nodes[:2]:
            node.beat()
    for node in nodes[:2]:
        node.round.report(rounds_module.Report())
    for node in nodes[:2]:
        assert [report.signal for report in node.round.reports(lambda _: pytest.fail("it waits")).values()] == [0, 0, 15]
