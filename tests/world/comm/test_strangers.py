"""A process that is not of the run is not let in, and nothing that it sends is run."""

import pytest
import strangers

from lockstep._base.errors import PeerError, StrangerError
from lockstep._launch import failures

pytestmark = pytest.mark.timeout(60)


def test_a_rank_without_the_runs_secret_is_not_let_in(crew):
    for kind, message in crew(2, strangers.join_with_another_secret):
        assert kind == "StrangerError"
        assert "LOCKSTEP_SECRET" in message


def test_nor_into_a_group_of_some_ranks(standing_crew):
    assert standing_crew(2, strangers.open_a_group_with_another_secret) == ["StrangerError"] * 2


def test_a_rank_that_goes_away_meanwhile_is_not_called_a_stranger(crew):
    (kind, message), _ = crew(2, strangers.leave_before_the_proof)
    assert kind == "PeerError"
    assert "belong to one run" in message


def test_what_is_said_of_a_stranger_is_not_taken_for_an_echo_of_a_lost_connection():
    lost, stranger = (
        failures.from_exception(rank, error(f"of {rank}")) for rank, error in enumerate((PeerError, StrangerError))
    )
    assert failures.in_order([lost, stranger])[0].rank == stranger.rank


def test_a_pickle_that_a_rank_sends_in_join_is_not_run(crew, tmp_path):
    mark = tmp_path / "unpickled"
    results = crew(2, strangers.send_a_trap, str(mark))
    assert all(kind != "joined" for kind, _ in results)
    assert not mark.exists()
