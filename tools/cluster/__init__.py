"""A cluster in a box: hosts on one machine that are as separate as real hosts (docs/clusters.md).

With ``tools`` on Python's path, it is a library for tests and benchmarks; ``python -m cluster``
opens a prompt."""

from cluster.cluster import Cluster, missing
from cluster.host import LOCAL, Command, Host, HostError

__all__ = ["LOCAL", "Cluster", "Command", "Host", "HostError", "missing"]
