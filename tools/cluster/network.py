"""The network of a cluster: one switch, and a cable to each host.

The switch is a bridge in a separate network namespace, and a cable is a pair of virtual interfaces:
``eth0`` on the host, and a port on the switch with the host's name. No interface, address or route
of the machine is touched, and there is no way out. A namespace is named by the number of a process
in it.
"""

import subprocess

SUBNET = "10.213.0"  # every cluster has the same: they never see each other
SWITCH = "switch"
# A queue that holds a tenth of a second at the rate, and lets 64 KiB at once through: what tbf
# needs to keep to the rate.
QUEUE = ("burst", "64kb", "latency", "100ms")


def address(index: int) -> str:
    """The address of the host with this index."""
    return f"{SUBNET}.{index + 1}"


def inside(pid: int, *command: str, told: str = "") -> None:
    """Run a command in the network of a process. Raises RuntimeError with what it said if it
    fails."""
    arguments = ["nsenter", "--target", str(pid), "--net", *command]
    done = subprocess.run(arguments, input=told, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed with status {done.returncode}: {done.stderr.strip()}\n{told}")


def _ip(pid: int, *lines: str) -> None:
    inside(pid, "ip", "-batch", "-", told="\n".join(lines))


class Switch:
    """The switch in the network of the process ``pid``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        _ip(pid, "link set lo up", f"link add {SWITCH} type bridge", f"link set {SWITCH} up")

    def plug(self, name: str, host: int, own_address: str) -> None:
        """Lay the cable of a host; ``host`` is its first process."""
        _ip(self._pid, f"link add {name} type veth peer name eth0 netns {host}", f"link set {name} master {SWITCH} up")
        # The same MAC address whenever the host comes back, so that the others' tables of
        # neighbours are right.
        mac = "02:00:" + ":".join(f"{int(number):02x}" for number in own_address.split("."))
        _ip(host, "link set lo up", f"link set eth0 address {mac} up", f"addr add {own_address}/24 dev eth0")

    def unplug(self, name: str) -> None:
        """Take the cable away, with both its ends."""
        _ip(self._pid, f"link del {name}")

    def cut(self, name: str) -> None:
        """Drops all packets on the cable from now on, silently: the host's interface stays up."""
        _ip(self._pid, f"link set {name} nomaster")

    def restore(self, name: str) -> None:
        """Carry packets again."""
        _ip(self._pid, f"link set {name} master {SWITCH}")

    def limit(self, name: str, host: int, rate: str | None) -> None:
        """Let at most ``rate`` through, each way, in the words of tc (``10mbit``). None: as fast as
        it goes."""
        for pid, device in ((self._pid, name), (host, "eth0")):
            # The first deletes what is not there if there was no limit.
            if rate is None:
                inside(pid, "sh", "-c", f"tc qdisc del dev {device} root 2>/dev/null || true")
            else:
                inside(pid, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, *QUEUE)
