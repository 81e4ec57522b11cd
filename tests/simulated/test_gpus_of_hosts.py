"""Several GPUs on each of several hosts, as the launcher and the hosts' names tell."""

import pytest
import scripts

pytestmark = pytest.mark.timeout(120)


def let_out(ranks, ranks_per_host):
    """The bytes that leave the first host, divided by those of the gradients."""
    first = range(ranks_per_host)
    sent = sum(number for rank in first for peer, number in ranks[rank]["sent"].items() if peer not in first)
    return sent / ranks[0]["bytes"]


@pytest.mark.parametrize(("nproc", "ranks_per_host"), [(4, 2), (8, 4), (8, 2)])
def test_a_host_lets_out_what_one_of_its_gpus_would_and_the_bits_are_those_of_one_process(crew, nproc, ranks_per_host):
    (on_cpu,) = crew(1, scripts.send_gradients, shards=8, device="cpu")
    ranks = crew(nproc, scripts.on_hosts, ranks_per_host, scripts.send_gradients, shards=8)
    for one in ranks:
        assert one["reports"] == []
        assert one["digest"] == on_cpu["digest"]
        assert one["launches"]["messages"] == 4  # two rounds, and their ways back
    num_hosts = nproc // ranks_per_host
    as_planned = 2 * (num_hosts - 1) / num_hosts
    assert as_planned <= let_out(ranks, ranks_per_host) <= 1.01 * as_planned < 2 * (nproc - 1) / nproc  # a ring's


@pytest.mark.parametrize(("strategy", "shards"), [("exact", 6), ("fsdp", 4)])
def test_a_run_on_two_hosts_has_the_digest_of_the_cpu(crew, strategy, shards):
    (on_cpu,) = crew(1, scripts.train, shards=shards, device="cpu")
    for one in crew(4, scripts.on_hosts, 2, scripts.train, strategy=strategy, shards=shards):
        assert one["backend"] == "simccl"
        assert one["reports"] == []
        assert one["digest"] == on_cpu["digest"]
