"""The strategy ``horovod``: Horovod itself sums the gradients, under its own launcher and under
others."""

import sys

import horovod_scripts
import pytest
import sync_scripts
import test_sync_conformance as conformance
import torch
from codes import raises, refusal_of
from horovod_helpers import horovod, under_horovodrun

from lockstep._base.errors import ConfigError, LaunchError
from lockstep._world.comm.horovod import find_horovod

__all__ = ["horovod"]  # a fixture
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def walked(crew):
    """As that of ``conformance``, in processes that are forked: Horovod joins once in each."""
    return lambda nproc, *args, shards: crew(nproc, sync_scripts.walk, *args, shards=shards)


@pytest.mark.usefixtures("horovod")
def test_it_keeps_the_protocol_of_every_strategy(walked):
    nproc, shards = 3, 4
    for weights in (None, conformance.WEIGHTS):
        conformance.test_the_gradient_of_a_step_is_the_weighted_mean_over_its_shards(
            walked, "horovod", nproc, shards, weights
        )
    conformance.test_buffers_are_combined_shard_by_shard_and_constants_never_touched(walked, "horovod", nproc, shards)
    conformance.test_each_phase_has_its_own_gradient_in_which_backward_calls_add_up(walked, "horovod", nproc, shards)


@pytest.mark.usefixtures("horovod")
def test_a_dropped_step_leaves_no_trace(walked):
    conformance.test_a_dropped_step_leaves_no_trace(walked, "horovod", 2, 4)


@pytest.mark.long
@pytest.mark.parametrize(
    "hosts",
    ["localhost:{nproc}", pytest.param("localhost:1,127.0.0.1:1", marks=pytest.mark.longest)],
    ids=["one host", "two names of it"],
)
@pytest.mark.usefixtures("horovod")
def test_a_script_under_horovodrun_ends_as_with_ddp_under_lockstep_run(crew, tmp_path, hosts):
    ours = crew(2, horovod_scripts.train, str(tmp_path), strategy="ddp")[0]
    (tmp_path / "end.pt").unlink()
    done = under_horovodrun(tmp_path, horovod_scripts.__file__, str(tmp_path), hosts=hosts, strategy="horovod")
    assert done.returncode == 0, done.stdout
    end = torch.load(tmp_path / "end.pt")
    assert (end["strategy"], end["launcher"]) == ("horovod", "horovodrun")
    torch.testing.assert_close(end["state"], ours, rtol=1e-5, atol=1e-6)


@pytest.mark.longest
@pytest.mark.usefixtures("horovod")
def test_horovodrun_starts_the_other_strategies_too(tmp_path):
    done = under_horovodrun(tmp_path, horovod_scripts.__file__, str(tmp_path), strategy="exact")
    assert done.returncode == 0, done.stdout
    assert torch.load(tmp_path / "end.pt")["strategy"] == "exact"


@pytest.mark.usefixtures("horovod")
def test_starting_horovod_leaves_no_variable_and_no_port_that_another_host_can_reach(crew):
    for rank, (variables, place, listening) in enumerate(crew(2, horovod_scripts.look_around)):
        assert variables == []
        assert place == (rank, 2, rank, 2)
        assert listening, "nothing was seen to listen: this test looks in the wrong place"
        assert listening <= {"127.0.0.1", "::1"}


@pytest.mark.usefixtures("horovod")
def test_a_process_can_join_one_run_after_another(crew):
    first, again, other = crew(2, horovod_scripts.join_twice)[0]
    assert first == again
    assert first[0] != other[0]
    assert first[1] == other[1]


@pytest.mark.usefixtures("horovod")
def test_a_rank_that_does_not_come_is_waited_for_as_long_as_the_timeout_says(crew):
    with pytest.raises(LaunchError, match=r"PeerError: .* in step 2"):
        crew(2, horovod_scripts.stay_away)


@pytest.mark.usefixtures("horovod")
def test_a_gradient_that_comes_in_parts_is_refused_with_the_remedy(crew):
    found = crew(2, refusal_of, horovod_scripts.reentrant)
    assert [code for _, code, _ in found] == ["gradient-in-parts"] * 2


@pytest.mark.usefixtures("horovod")
def test_an_error_in_a_backward_pass_that_is_caught_ends_the_shard_as_an_error(crew):
    for shard in (0, 2):  # the first and the last of rank 0
        with pytest.raises(LaunchError) as caught:
            crew(2, sync_scripts.catch, shard, "nothing", "horovod", shards=6)
        assert caught.value.summary.startswith(f"UsageError: step 2, shard {shard}:")


def test_without_horovod_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.torch", None)
    with raises(ConfigError, "horovod-missing") as caught:
        find_horovod()
    assert "make horovod" in str(caught.value)


def test_a_horovod_of_another_pytorch_is_named(monkeypatch):
    # a module that has no init(): what Horovod leaves then
    monkeypatch.setitem(sys.modules, "horovod.torch", sys)
    with raises(ConfigError, "horovod-not-loadable"):
        find_horovod()
