"""Launchers of several machines, in threads of this process: ``meeting.py HOW PORT NUM_HOSTS FIRST
STEP``: FIRST, FIRST + STEP and so on; the first of all has a separate process, with the store.

It prints "ready", meets at "go", and then prints a line of JSON. HOW: ``lockstep``, the launchers'
own connection, heartbeat and rendezvous; or ``store``, which does with PyTorch's TCP store alone
what no meeting can do without: each host connects, sets a key, and gets one that the first sets
once it has all the others'.
"""

import collections
import datetime
import gc
import json
import logging
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from lockstep._launch.elastic import connection as connections
from lockstep._launch.elastic.heartbeat import Heartbeat
from lockstep._launch.elastic.places import Machine, Start
from lockstep._launch.elastic.static_rendezvous import StaticRendezvous
from lockstep._launch.elastic.waiter import Stop
from lockstep._launch.endpoint import find_endpoint
from lockstep._launch.nodes import Nodes
from lockstep._launch.secret import Secret, SharedSecret
from lockstep._world.machine.tcp_store import connect, serve

TIMEOUT_S = 300.0
SECRET = SharedSecret(given=Secret(b"of a benchmark"), path=Path("unused"))
HOW, PORT, NUM_HOSTS, FIRST, STEP = sys.argv[1], *map(int, sys.argv[2:])


class Counted:
    """A store's client that counts the requests of each thread."""

    requests: ClassVar[collections.Counter[int]] = collections.Counter()

    def __init__(self, client: TCPStore) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        if name not in ("timeout", "set_timeout"):
            self.requests[threading.get_ident()] += 1
        return getattr(self._client, name)


class Host:
    """A launcher, with a number like ``--node-rank``."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.endpoint = find_endpoint(self.nodes(number), SECRET)
        self.requests = 0
        self.kept = ExitStack()

    @staticmethod
    def nodes(number: int) -> Nodes:
        """The hosts, as this one knows them."""
        return Nodes(least=NUM_HOSTS, most=NUM_HOSTS, node_rank=number, host="127.0.0.1", port=PORT, run_id="benchmark")

    def meet(self) -> None:
        """As ``launch.elastic.run`` and ``agent`` do."""
        connection = connections.open_connection(self.endpoint, TIMEOUT_S, Stop())
        self.kept.enter_context(closing(Heartbeat(connection)))
        machine = Machine.here("127.0.0.1", 8)
        StaticRendezvous(connection).meet(machine, lambda: Start(launch="benchmark", used=0, master_port=PORT))
        self.requests = Counted.requests[threading.get_ident()]
        self.kept.callback(lambda: connection)

    def meet_by_store(self) -> None:
        """Without lockstep."""
        listener, timeout = self.endpoint.listener, datetime.timedelta(seconds=TIMEOUT_S)
        server = None if listener is None else serve(listener, "127.0.0.1", TIMEOUT_S)
        client = TCPStore("127.0.0.1", PORT, None, False, timeout, False)
        client.set(f"{self._number}", "a" * 200)
        if server is not None:
            client.multi_get([f"{number}" for number in range(NUM_HOSTS)])
            client.set("all", "a" * 200)
        client.get("all")
        self.requests = 2
        self.kept.callback(lambda: (client, server))


def counted_connect(*args: Any) -> Any:
    """Replaces ``connect``."""
    return Counted(connect(*args))


def main() -> None:
    logging.disable()
    gc.disable()  # it would look at all hosts again and again
    # else each thread that waits for its turn wakes up 200 times a second to ask for it
    sys.setswitchinterval(100)
    connections.connect = counted_connect
    hosts = [Host(number) for number in range(FIRST, NUM_HOSTS if FIRST else 1, STEP)]
    begin, ended_at, errors = threading.Event(), [], []

    def take_part(host: Host) -> None:
        begin.wait()
        try:
            host.meet() if HOW == "lockstep" else host.meet_by_store()
        except BaseException as error:
            errors.append(repr(error))
        ended_at.append(time.monotonic())

    threads = [threading.Thread(target=take_part, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.readline()
    began_at, began_cpu_s = time.monotonic(), time.process_time()
    begin.set()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - began_cpu_s
    found = {"began_at": began_at, "ended_at": max(ended_at), "cpu_s": cpu_s, "errors": errors[:1]}
    print(json.dumps({**found, "requests": [host.requests for host in hosts]}), flush=True)
    sys.stdin.readline()  # the others may still need the store


main()
