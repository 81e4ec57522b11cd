"""The step that other processes can read at any time."""

import os

from lockstep.journal.measure.live_step import LiveStep, live_step, read_live_step


def test_another_process_reads_the_step_of_now():
    step = LiveStep()
    step.memory[0] = 7
    parent, (reads, writes) = os.getpid(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(writes, str(read_live_step(parent, step.descriptor)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 100) == b"7"
    os.close(reads)
    os.close(writes)
    os.close(step.descriptor)


def test_a_fork_that_takes_steps_of_its_own_does_not_count_them_as_those_of_the_process():
    mine = live_step()
    mine.memory[0] = 7
    if (child := os.fork()) == 0:
        mine.memory[0] = 1000
        live_step().memory[0] = 2000
        os._exit(live_step() is mine)
    assert os.waitpid(child, 0)[1] == 0
    assert read_live_step(os.getpid(), mine.descriptor) == 7
    mine.memory[0] = 0


def test_a_descriptor_that_is_closed_or_of_another_file_tells_nothing(tmp_path):
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(8))
        assert read_live_step(os.getpid(), file.fileno()) is None
    assert read_live_step(os.getpid(), -1) is None
