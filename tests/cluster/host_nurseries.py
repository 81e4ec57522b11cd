"""Launchers on the hosts of a cluster, forked there from a process that has imported torch: see
``nursery``."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import nursery


class HostNurseries:
    """A nursery on each host that launchers are started on, made when the first is and anew after a
    loss of power.

    Args:
        outlives_tests: the fixture, where there are tests.
    """

    def __init__(self, outlives_tests=lambda pid: None):
        self._outlives_tests = outlives_tests
        self._made = {}

    def start(self, host, words, **options):
        """``lockstep run`` with these words on a host; ``options`` are those of ``Nursery.start``.

        Where a host has an environment of its own, the launcher imports everything itself, as a
        command does."""
        if host.environment:
            command = [sys.executable, "-m", "lockstep._cli.main", "run", *words]
            return host.start(command, stdin=subprocess.DEVNULL, **options)
        host.daemons.add(nursery.NAME)
        booted, made = self._made.get(host.name, (None, None))
        if booted != host.pid:
            if made:
                made.close()
            made = nursery.Nursery(host.start)
            self._outlives_tests(made.pid)
            self._made[host.name] = host.pid, made
        return LaunchedOnHost(host, made.start(words, **options))

    def close(self):
        """End them."""
        for _, made in self._made.values():
            made.close()


class LaunchedOnHost:
    """What is used of ``subprocess.Popen`` for a launcher whose number the host alone knows."""

    def __init__(self, host, launched):
        self._host, self._launched = host, launched

    def poll(self):
        return self._launched.poll()

    def wait(self, timeout=None):
        return self._launched.wait(timeout)

    def send_signal(self, number):
        while self.poll() is None:
            for process, _ in self._host.inhabitants():
                if numbers(process.pid)[-1:] == [self._launched.pid]:
                    process.send_signal(number)
                    return
            time.sleep(0.001)  # it is gone, and that is not known yet

    def kill(self):
        self.send_signal(signal.SIGKILL)


def numbers(pid):
    """Of a process, in each of its namespaces, the machine's first; none if it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    return list(map(int, status.partition("NSpid:")[2].partition("\n")[0].split()))
