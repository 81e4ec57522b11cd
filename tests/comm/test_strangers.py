"""A process that is not of the run is not let in, and nothing that it sends is run."""

import os
import socket

import pytest
import strangers

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as held:
        return held.getsockname()[1]


def test_another_user_of_this_machine_is_not_taken_for_a_rank(crew, free_port, require):
    require("users", None if os.geteuid() == 0 else "only root can act as two users")
    (kind, message), _ = crew(2, strangers.join_as_another_user, free_port)
    assert kind == "PeerError"
    assert str(strangers.NOBODY) in message


def test_a_rank_without_the_runs_secret_is_not_let_in(crew):
    for kind, message in crew(2, strangers.join_with_another_secret):
        assert kind == "PeerError"
        assert "LOCKSTEP_SECRET" in message


def test_a_pickle_that_a_rank_sends_in_join_is_not_run(crew, tmp_path):
    mark = tmp_path / "unpickled"
    results = crew(2, strangers.send_a_trap, str(mark))
    assert all(kind != "joined" for kind, _ in results)
    assert not mark.exists()
