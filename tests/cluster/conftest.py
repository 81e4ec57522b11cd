"""Tests of this folder run on several hosts: see ``cluster``."""

from cluster_fixtures import _cluster, _slurm_cluster, cluster, nurseries, slurm_cluster

__all__ = ["_cluster", "_slurm_cluster", "cluster", "nurseries", "slurm_cluster"]
