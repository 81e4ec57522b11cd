"""What the agent of a node does at each end of a round, and with which signals: on a clock that
jumps, with played workers. The other nodes, the store and the rounds are real, the network is not
there."""

import json
import signal
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from lockstep._launch.elastic import agent as agent_module
from lockstep._launch.elastic import round as round_module
from lockstep._launch.elastic.agent import NodeAgent, StoreLostError
from lockstep._launch.elastic.places import Machine, Place, answer_key, machine_key, place_all
from lockstep._launch.elastic.round import Report, Round
from lockstep._launch.elastic.signed import ForgedError, SignedStore
from lockstep._launch.elastic.waiter import StoppedError
from lockstep._launch.failures import Failure
from lockstep._launch.nodes import Nodes
from lockstep._launch.secret import Secret
from lockstep._launch.spec import LaunchSpec, Script
from lockstep._launch.supervise import LaunchResult

pytestmark = pytest.mark.timeout(60)
LOST_S = 10.0
FAILURE = Failure(rank=0, kind="ValueError", message="boom", exit_status=7)


class PlayedWorkers:
    """This machine's workers of a round. ``ended`` is what a test calls."""

    def __init__(self, play, spec):
        self._play, self.spec = play, spec
        self.is_running, self.is_stopping, self.failures = True, False, ()
        self.outcome = LaunchResult(failures=(), stopped_by=None, spec=spec)
        self.asked = []  # what they were asked, and when
        play.workers.append(self)

    def stop(self, number, *, at_once=False):
        self.asked.append((signal.Signals(number).name, round(self._play.now, 1)))
        self.is_stopping = True

    def end(self, *, at_once=False):
        self.asked.append(("end", round(self._play.now, 1)))

    def wait(self):
        self.asked.append(("wait", round(self._play.now, 1)))
        assert ("ended" in self._play.store_of_round) or self._play.may_wait, "the others were not told first"
        self.ended()

    def ended(self, *failures, stopped_with=None):
        if self.is_running:
            self.is_running, self.failures = False, failures
            stopped_by = signal.SIGTERM if self.is_stopping else None
            self.outcome = LaunchResult(failures=failures, stopped_by=stopped_by, stopped_with=stopped_with, spec=self.spec)


class Beats:
    """A heartbeat that beats when the test says so."""

    def __init__(self, play):
        self._play, self._act = play, None
        self.answered_at, self.error, self.beat_s = 0.0, None, 0.25

    def silence_s(self):
        return self._play.now - self.answered_at

    def also(self, act):
        self._act = act

    def beat(self):
        if self._act is not None and self.error is None and not self._play.is_cut:
            self._act(self._play.store)
            self.answered_at = self._play.now


class Play:
    """A node, ``number`` of two, and the other one, which does what the test says."""

    def __init__(self, directory, number=0, *, least=2, most=2, max_restarts=0, keeps_store=True):
        self.now, self.is_cut, self.may_wait = 0.0, False, False
        self.secret = Secret(b"a secret")
        self.number, self.workers, self.swept, self._due = number, [], [], []
        self.store = SignedStore(HashStore(), self.secret, "here")
        self.nodes = Nodes(least=least, most=most, node_rank=None, host="here", port=1, run_id="one")
        self.num_waiting = self.num_met = 0
        self.other = self.other_beats = None
        self.is_other_silent = False
        self.beats = Beats(self)
        stop = SimpleNamespace(is_stopped=False, sleep=self.sleep)
        stop.set, stop.is_set = lambda: setattr(stop, "is_stopped", True), lambda: stop.is_stopped
        connection = SimpleNamespace(
            endpoint=SimpleNamespace(local_address="127.0.0.1", store_host="here"),
            server=object() if keeps_store else None,
            nodes=self.nodes,
            prefix="lockstep/one",
            secret=self.secret,
            stop=stop,
            lost_s=LOST_S,
            run_store=self.store,
            round_store=self.round_store,
        )
        script = Script(target="script.py")
        spec = LaunchSpec(
            program=script, nproc=2, private_dir=str(directory), environ={}, max_restarts=max_restarts, name="launch-1"
        )
        rendezvous = SimpleNamespace(meet=self._meet, look=lambda: self.num_waiting)
        self.agent = NodeAgent(connection, self.beats, rendezvous, spec, lambda: "a server", None)

    def round_store(self, count):
        return self.store.under(f"round-{count}")

    @property
    def store_of_round(self):
        store = self.round_store(self.num_met - 1)
        return {name for name in ("ended", "report/0", "report/1") if store.check([name])}

    def at(self, when_s, what, *args, **more):
        self._due.append((when_s, len(self._due), lambda: what(*args, **more)))

    def workers_end(self, when_s, *failures, **more):
        self.at(when_s, lambda: self.workers[-1].ended(*failures, **more))

    def other_reports(self, when_s, **report):
        """The other node's workers have ended, and not by themselves and well."""

        def end():
            is_first = self.other.end()
            self.other.report(Report(is_first=is_first, **report))

        self.at(when_s, end)

    def other_is_done(self, when_s, status=None):
        self.at(when_s, lambda: self.other.done(status))

    def sleep(self, seconds):
        self.now += max(seconds, 0.05)
        assert self.now < 1000.0, "it waits for ever"
        for due in sorted(due for due in self._due if due[0] <= self.now):
            self._due.remove(due)
            due[2]()
        for beats in (self.other_beats, self.beats):
            if not (beats is self.other_beats and self.is_other_silent):
                beats.beat()

    def _meet(self, machine, start):
        count, other = self.num_met, 1 - self.number
        self.num_met += 1
        store = self.round_store(count)
        for number in (0, 1):
            here = machine if number == self.number else Machine(host="other", address="10.0.0.9", num_ranks=3)
            store.set(machine_key(number), json.dumps(asdict(here)))
        place_all(store, 2, count, start())
        mine, others = (Place(**json.loads(store.get(answer_key(number)))) for number in (self.number, other))
        self.other_beats = Beats(self)
        self.other = Round(store, self.other_beats, others, lambda: self.num_waiting)
        return mine


@pytest.fixture
def play(tmp_path, monkeypatch):
    def start(number=0, **more):
        made = Play(tmp_path, number, **more)
        clock = SimpleNamespace(monotonic=lambda: made.now, sleep=made.sleep)
        monkeypatch.setattr(agent_module, "time", clock)
        monkeypatch.setattr(round_module, "time", clock)
        monkeypatch.setattr(agent_module, "Workers", lambda spec, server, plan: PlayedWorkers(made, spec))
        monkeypatch.setattr(agent_module, "sweep", lambda sessions, mark: made.swept.append((sessions, mark)))
        return made

    return start


@pytest.mark.parametrize("number", [0, 1])
def test_a_node_whose_workers_are_done_waits_for_the_others_and_all_is_well(play, number):
    made = play(number)
    made.store.set("launch", "first")  # by whoever started first
    made.workers_end(3.0)
    made.other_is_done(20.0)
    made.agent.run()
    assert 20.0 <= made.now < 22.0
    assert (made.agent.verdict, made.agent.stopped_with, made.agent.stopped_by) == (None, None, None)
    assert [workers.asked for workers in made.workers] == [[]]
    assert made.store_of_round == set()
    [spec] = [workers.spec for workers in made.workers]
    assert (spec.restart, spec.ranks, spec.world_size) == (0, range(2) if number == 0 else range(3, 5), 5)
    assert (spec.node.number, spec.node.num_nodes, spec.name) == (number, 2, "first")
    assert spec.master_port > 0
    assert spec.node.secret != made.secret.key.hex()  # which could sign for a launcher
    assert spec.private_dir.endswith("start-0")
    assert made.beats._act is None  # no heartbeat of a round that is over


@pytest.mark.parametrize("is_done", [False, True])
def test_the_failure_of_another_node_ends_this_one_also_if_it_was_done(play, is_done):
    made = play(1, keeps_store=False)
    if is_done:
        made.workers_end(1.0)
    made.other_reports(5.0, failures=(FAILURE,))
    made.agent.run()
    verdict = made.agent.verdict
    assert (verdict.continues, verdict.status, verdict.code, made.agent.is_reporter) == (False, 7, "restarts-used", False)
    assert made.now < 7.0
    assert [name for name, _ in made.workers[0].asked] == (["wait"] if is_done else ["end", "wait"])
    assert made.swept == [((), made.workers[0].spec.private_dir)]
    report = Report.from_json(made.round_store(0).get("report/1").decode())
    assert (report.is_first, report.failures) == (False, ())


def test_a_failure_here_is_announced_before_anything_is_waited_for_and_all_judge_alike(play):
    made = play(0)
    made.workers_end(2.0, FAILURE)
    made.at(4.0, lambda: made.other.report(Report()))
    made.agent.run()
    assert (made.agent.verdict.status, made.agent.is_reporter) == (7, True)
    report = Report.from_json(made.round_store(0).get("report/0").decode())
    assert (report.failures, report.is_first, report.signal, report.joins) == ((FAILURE,), True, 0, False)
    assert 4.0 <= made.now < 5.0


def test_a_store_that_is_lost_while_reports_are_waited_for_ends_the_wait(play):
    made = play(1, keeps_store=False)
    made.workers_end(2.0, FAILURE)
    made.at(4.0, setattr, made.beats, "error", ConnectionError("reset"))
    with pytest.raises(ConnectionError):
        made.agent.run()
    assert made.now < 6.0


@pytest.mark.parametrize("number", [0, 1])
def test_a_restart_is_counted_once_by_the_node_that_reports_and_begins_a_new_round(play, number):
    made = play(number, max_restarts=1)
    made.workers_end(2.0, FAILURE)
    made.at(3.0, lambda: made.other.report(Report()))
    made.workers_end(6.0)
    made.other_is_done(6.0)
    made.agent.run()
    assert made.num_met == len(made.workers) == 2
    # Node 0 reports. The other one counts for itself, which is played here.
    assert made.store.add("used", 0) == (1 if number == 0 else 0)
    first, second = (workers.spec for workers in made.workers)
    assert (first.restart, second.restart, second.name) == (0, 1, "launch-1")
    assert first.private_dir != second.private_dir
    assert second.node.store != first.node.store
    assert made.agent.verdict is None


def test_with_no_restart_left_the_failure_is_the_end(play):
    made = play(0, max_restarts=1)
    for begin_s in (2.0, 6.0):
        made.workers_end(begin_s, FAILURE)
        made.at(begin_s + 1, lambda: made.other.report(Report()))
    made.agent.run()
    assert (made.num_met, made.agent.verdict.code, made.store.add("used", 0)) == (2, "restarts-used", 1)


@pytest.mark.parametrize("status", [75, 74])
def test_a_run_that_a_signal_here_stops_saves_itself_and_all_exit_with_its_status(play, status):
    made = play(0)
    made.at(2.0, made.agent.stop, signal.SIGTERM)
    made.workers_end(4.0, stopped_with=75)
    made.other_is_done(4.5, status)
    made.at(5.0, lambda: made.other.report(Report(stopped_with=status)))
    made.agent.run()
    assert made.workers[0].asked[0] == ("SIGTERM", 2.0)
    assert [name for name, _ in made.workers[0].asked] == ["SIGTERM", "wait"]
    verdict = made.agent.verdict
    assert (made.agent.stopped_with, verdict.code, verdict.continues) == (status, "saved", False)
    report = Report.from_json(made.round_store(0).get("report/0").decode())
    assert (report.signal, report.stopped_with, made.round_store(0).get("done/0")) == (signal.SIGTERM, 75, b"75")
    assert made.agent.stopped_by == signal.SIGTERM


def test_a_node_that_is_stopped_leaves_a_run_that_goes_on_without_it(play):
    made = play(1, least=1, keeps_store=False)
    made.at(2.0, made.agent.stop, signal.SIGTERM)
    made.workers_end(4.0, stopped_with=75)
    made.other_is_done(4.5, 75)
    made.at(5.0, lambda: made.other.report(Report(stopped_with=75)))
    with pytest.raises(StoppedError):
        made.agent.run()
    assert (made.num_met, made.agent.verdict.code, made.agent.stopped_with) == (1, "node-left", 75)


def test_a_second_signal_is_passed_on_and_a_run_that_is_not_saved_leaves(play):
    made = play(1, keeps_store=False)
    made.at(2.0, made.agent.stop, signal.SIGTERM)
    made.at(5.0, made.agent.stop, signal.SIGINT)
    made.workers_end(6.0)
    with pytest.raises(StoppedError):
        made.agent.run()
    assert [name for name, _ in made.workers[0].asked] == ["SIGTERM", "SIGINT"]
    assert made.agent.stopped_by == signal.SIGTERM
    assert Report.from_json(made.round_store(0).get("report/1").decode()).signal == signal.SIGTERM


def test_a_signal_after_the_workers_were_done_leaves_and_says_so(play):
    made = play(1, keeps_store=False)
    made.workers_end(1.0)
    made.at(5.0, made.agent.stop, signal.SIGTERM)
    with pytest.raises(StoppedError):
        made.agent.run()
    assert made.store_of_round == {"ended", "report/1"}


def test_a_node_that_waits_is_let_in_by_a_save_and_costs_no_restart(play):
    made = play(0, least=1, most=3)
    made.at(2.0, setattr, made, "num_waiting", 1)
    made.workers_end(4.0, stopped_with=75)
    made.other_is_done(4.0, 75)
    made.at(5.0, lambda: made.other.report(Report(stopped_with=75)))
    made.at(5.0, setattr, made, "num_waiting", 0)
    made.other_reports(9.0, failures=(FAILURE,))
    made.agent.run()
    assert [name for name, _ in made.workers[0].asked] == ["SIGTERM", "wait"]
    assert [name for name, _ in made.workers[1].asked] == ["end", "wait"]
    assert Report.from_json(made.round_store(0).get("report/0").decode()).joins
    assert (made.num_met, made.store.add("used", 0), made.agent.stopped_with) == (2, 0, None)
    assert not Report.from_json(made.round_store(1).get("report/0").decode()).joins


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_node_that_is_silent_for_long_enough_is_lost_and_not_sooner(play, is_elastic):
    made = play(0, least=1 if is_elastic else 2)
    made.at(2.0, setattr, made, "is_other_silent", True)
    if is_elastic:  # in the next round it is back
        made.at(14.0, setattr, made, "is_other_silent", False)
        made.workers_end(16.0)
        made.other_is_done(16.0)
    made.agent.run()
    name, ended_s = made.workers[0].asked[0]
    assert name == "end"
    assert 2.0 + LOST_S - 0.5 < ended_s < 2.0 + LOST_S + 1.0
    if is_elastic:
        assert (made.num_met, made.store.add("used", 0)) == (2, 0)
    else:
        assert (made.num_met, made.agent.verdict.code) == (1, "node-lost")


@pytest.mark.parametrize("what", ["silent", "error", "forged"])
def test_a_store_that_is_lost_ends_the_workers_and_a_forged_one_is_named(play, what):
    made = play(1, keeps_store=False)
    made.may_wait = True  # there is nothing by which the others could be told
    error = {"error": ConnectionError("reset"), "forged": ForgedError("no signature")}.get(what)
    made.at(3.0, setattr, *((made, "is_cut", True) if error is None else (made.beats, "error", error)))
    with pytest.raises(StoreLostError if what != "forged" else ForgedError):
        made.agent.run()
    assert made.workers[0].is_running is False
    assert made.workers[0].asked[0][1] == pytest.approx(3.0 if error else 3.0 + LOST_S, abs=1.0)


def test_a_node_that_is_lost_once_the_workers_here_are_done_is_not_waited_for(play):
    made = play(0)
    made.workers_end(1.0)
    made.at(2.0, setattr, made, "is_other_silent", True)
    made.agent.run()
    assert made.agent.verdict.code == "node-lost"
    before = made.now
    made.agent.leave()  # nor until it leaves
    assert made.now - before < 0.5


@pytest.mark.parametrize(
    ("keeps_store", "leaves_s", "left_s"),
    [(True, 22.0, 22.0), (True, None, 20.0 + agent_module._FAREWELL_S), (False, None, 20.0)],
)
def test_the_keeper_of_the_store_waits_for_the_others_to_leave_but_not_for_long(play, keeps_store, leaves_s, left_s):
    made = play(0, keeps_store=keeps_store)
    made.workers_end(3.0)
    made.other_is_done(3.0)
    made.agent.run()
    made.now = 20.0
    if leaves_s:
        made.at(leaves_s, made.round_store(0).set, "left/1", "")
    made.agent.leave()
    assert made.round_store(0).check(["left/0"])
    assert made.now == pytest.approx(left_s, abs=0.3)
