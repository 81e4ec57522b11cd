"""A process is asked for its stack with a signal, as often as it joins a run."""

import os
import threading

from lockstep.explain.asking import SIGNAL, Answering, ask
from lockstep.stopping import catches


def test_a_process_answers_each_time_that_it_has_joined_and_lives_on_in_between(tmp_path):
    for name in ("first", "second"):
        answering = Answering(tmp_path / f"{name}.stacks")
        record = {**answering.where(), "pid": os.getpid(), "thread": threading.get_ident()}
        frames = ask(record)
        assert any(file == __file__ for file, _, _ in frames)
        answering.close()
        assert not catches(os.getpid(), SIGNAL)
        assert ask(record) is None
        os.kill(os.getpid(), SIGNAL)  # one that was on its way


def test_what_is_opened_under_the_number_of_the_closed_file_is_not_written_to(tmp_path):
    thread = threading.Thread(target=lambda: Answering(tmp_path / "stacks").close())
    thread.start()
    thread.join()
    with (tmp_path / "mine").open("w"):
        os.kill(os.getpid(), SIGNAL)
    assert (tmp_path / "mine").read_text() == ""
