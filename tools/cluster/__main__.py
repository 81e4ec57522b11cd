"""A cluster on this machine until Ctrl-C, with a prompt: ``python -m cluster --hosts 3``."""

import argparse
import cmd
import os
import shlex
import signal
import sys
from pathlib import Path

from cluster.cluster import Cluster
from cluster.host import Host, HostError

INTRO = """
{hosts}
From another terminal, a shell on a host (NUMBER is behind its address):
  nsenter --all --wdns="$PWD" --target NUMBER env {variables} "${{SHELL:-sh}}"
"help" lists the commands. Ctrl-C or "quit" ends the cluster and all of its processes.
"""


class Prompt(cmd.Cmd):
    """One line, one deed."""

    prompt = "cluster> "

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster

    def do_hosts(self, _: str) -> None:
        """hosts: their names, addresses, and the number of their first process"""
        print(table(self._cluster))

    def do_run(self, line: str) -> None:
        """run HOST COMMAND: run a shell command on the host, and print a status other than 0; with
        & at the end, in the background"""
        name, _, command = line.partition(" ")
        status = self._run(name, ["sh", "-c", command])
        if status:
            print(f"status {status}")

    def do_shell(self, name: str) -> None:
        """shell HOST: a shell on the host"""
        self._run(name, [os.environ.get("SHELL", "sh")])

    def do_ps(self, _: str) -> None:
        """ps: what runs on the hosts"""
        for host in self._cluster.hosts:
            for process in host.processes():
                print(f"{host.name}  {process.pid}  {shlex.join(process.cmdline())}")

    def do_cut(self, name: str) -> None:
        """cut HOST: its packets are lost from now on"""
        self._host(name).cut()

    def do_restore(self, name: str) -> None:
        """restore HOST: its packets are carried again"""
        self._host(name).restore()

    def do_limit(self, line: str) -> None:
        """limit HOST RATE: let at most 10mbit (or 1gbit, ...) through its link, each way; limit
        HOST off"""
        name, rate = line.split()
        self._host(name).limit(None if rate == "off" else rate)

    def do_kill(self, name: str) -> None:
        """kill HOST: its power is lost"""
        self._host(name).kill()

    def do_revive(self, name: str) -> None:
        """revive HOST: switch it on again"""
        self._host(name).revive()

    def do_clock(self, line: str) -> None:
        """clock HOST SECONDS: let the dates of commands started there from now on be ahead by so
        much, or behind (-60)"""
        name, ahead_s = line.split()
        self._host(name).set_clock(int(ahead_s))

    def do_hide(self, line: str) -> None:
        """hide HOST DIRECTORY: the host sees an empty directory there"""
        name, path = line.split()
        self._host(name).hide(Path(path))

    def do_show(self, line: str) -> None:
        """show HOST DIRECTORY: the host sees it again"""
        name, path = line.split()
        self._host(name).show(Path(path))

    def do_quit(self, _: str) -> bool:
        """quit: end the cluster"""
        return True

    def do_EOF(self, _: str) -> None:  # noqa: N802 (the name that cmd gives it)
        """Ctrl-D, or no terminal at all: the cluster stays until a signal comes."""
        print("it stays up until Ctrl-C", flush=True)
        signal.pause()

    def emptyline(self) -> bool:
        """An empty line does nothing: cmd would do the last deed again."""
        return False

    def onecmd(self, line: str) -> bool:
        """Whatever goes wrong with a line, the cluster stays. One that ends with a backslash is
        continued on the next, as in a shell."""
        try:
            while line.endswith("\\"):
                line = line[:-1] + input()
            return super().onecmd(line)
        except (HostError, RuntimeError) as error:
            print(error)
        except EOFError:
            return super().onecmd("EOF")
        except ValueError as error:
            print(f"{line!r} was not understood ({error}): try help {line.split()[0]}")
        return False

    def _run(self, name: str, command: list[str]) -> int:
        host = self._host(name)
        before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command now
        try:
            status = host.start(command).wait()
        finally:
            signal.signal(signal.SIGINT, before)
        if sys.stdin.isatty():
            # A shell takes the terminal for itself, and on a host cannot give it back: it does not
            # see who had it.
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
            signal.signal(signal.SIGTTOU, before)
        return status

    def _host(self, name: str) -> Host:
        for host in self._cluster.hosts:
            if host.name == name.strip():
                return host
        raise HostError(f"there is no host {name!r}: there are {', '.join(host.name for host in self._cluster.hosts)}")


def table(cluster: Cluster) -> str:
    return "\n".join(f"  {h.name:8} {h.address:14} {'off' if h.pid is None else h.pid}" for h in cluster.hosts)


def variables(cluster: Cluster) -> str:
    """What a shell on a host needs to find what commands of the prompt find."""
    found = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}$PATH", **cluster.hosts[0].environment}
    return " ".join(f'{name}="{value}"' for name, value in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cluster", description=__doc__)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: 2)")
    parser.add_argument("--slurm", action="store_true", help="start Slurm on all hosts")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs per host that Slurm is configured with (default: 0)")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))
    # So that "run host0 torchrun ..." finds what belongs to this Python.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        with Cluster(options.hosts, slurm=options.slurm, gpus=options.gpus) as cluster:
            print(INTRO.format(hosts=table(cluster), variables=variables(cluster)), flush=True)
            Prompt(cluster).cmdloop()
    except (HostError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
