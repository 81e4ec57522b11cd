"""Promises of the display: a bar on a terminal, lines elsewhere, nothing on ranks other than 0."""

import contextlib
import os
import re
import select
import sys
import threading
import time

import pytest
from tqdm import tqdm

from lockstep._base.stopping import say
from lockstep._events.measure import progress
from lockstep._events.measure.passes import PassMeter
from lockstep._events.measure.progress import Bar, Lines, choose_display
from lockstep._events.writer import EventWriter

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize(
    ("style", "is_main", "on_terminal", "kind"),
    [
        ("auto", True, True, Bar),
        ("auto", True, False, Lines),
        ("bar", True, False, Bar),
        ("plain", True, True, Lines),
        ("off", True, True, type(None)),
        ("auto", False, True, type(None)),
        ("bar", False, True, type(None)),
        ("plain", False, False, type(None)),
    ],
)
def test_who_shows_what(style, is_main, on_terminal, kind):
    assert type(choose_display(style, lambda: None, is_main=is_main, on_terminal=on_terminal)) is kind


class Shown:
    """What a display shows of the passes of a meter."""

    def __init__(self, kind):
        meter = PassMeter(EventWriter(None), None, dict, speaks=False)
        self.display = kind(lambda: meter.progress)
        self.followers = meter, self.display

    def begin(self, epoch=0, num_epochs=2, num_steps=3, done=0):
        for each in self.followers:
            each.begin_pass(epoch, num_epochs, num_steps, done)

    def take(self, num_steps, values=None):
        for _ in range(num_steps):
            for each in self.followers:
                each.end_step(0, 8)
            self.display.values(values or {"loss": 1 / 3})

    def end(self):
        for each in self.followers:
            each.end_pass(0, exhausted=True)

    def run_pass(self, taken=3, values=None, **begin):
        self.begin(**begin)
        self.take(taken, values)
        self.end()


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_pass_ends_in_one_line_with_its_newest_values(capsys):
    Shown(Lines).run_pass()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"epoch 1/2  step 3/3  [\d.]+ steps/s  loss 0\.3333", lines[0])


@pytest.mark.parametrize("kind", [Lines, Bar])
def test_control_characters_in_the_name_of_a_value_are_shown_as_text(capsys, kind):
    Shown(kind).run_pass(values={"a\x1b]0;title\x07\rb\u202e": 1.0})
    out = capsys.readouterr().out
    assert r"a\x1b]0;title\x07\rb\u202e 1" in out
    assert "\x1b]0" not in out


def test_a_pass_that_failed_before_its_first_step_has_ended_says_nothing(capsys):
    Shown(Lines).run_pass(taken=0)
    assert capsys.readouterr().out == ""


def test_lines_come_now_and_then_and_not_at_every_step(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown = Shown(Lines)
    shown.begin(num_steps=None, done=40)  # of which this launch has taken none
    for _ in range(300):
        clock[0] += 0.125
        shown.take(1)
    shown.end()
    lines = capsys.readouterr().out.splitlines()
    assert [re.search(r"step (\d+)", line)[1] for line in lines] == ["120", "200", "280", "340"]
    assert "8.0 steps/s" in lines[-1]


def test_values_of_one_pass_are_not_shown_in_the_next(capsys):
    shown = Shown(Lines)
    shown.run_pass()
    shown.begin(epoch=1)
    for each in shown.followers:
        each.end_step(4, 8)
    shown.end()
    assert "loss" not in capsys.readouterr().out.splitlines()[-1]


def test_a_pass_that_was_interrupted_is_shown_from_where_it_goes_on(capsys):
    Shown(Lines).run_pass(taken=2, epoch=1, num_epochs=3, num_steps=5, done=3)
    assert re.match(r"epoch 2/3  step 5/5  [\d.]+ steps/s  loss", capsys.readouterr().out)


def test_a_bar_shows_how_far_the_pass_has_come_and_leaves_no_thread(capsys):
    threads = threading.active_count()
    Shown(Bar).run_pass(values={"loss": 0.25})
    out = plain(capsys.readouterr().out)
    assert "epoch 1/2" in out
    assert "3/3" in out
    assert "loss 0.25" in out
    deadline = time.monotonic() + 2
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.02)  # its last refresh
    assert threading.active_count() == threads


def test_what_is_printed_meanwhile_appears_above_the_bar(capsys):
    shown = Shown(Bar)
    shown.begin()
    print("a word from the script")
    shown.take(1)
    shown.end()
    out = plain(capsys.readouterr().out)
    assert out.index("a word from the script") < out.rindex("1/3")
    print("after it")
    assert capsys.readouterr().out == "after it\n"


def test_what_is_said_on_a_terminal_takes_the_place_of_the_bar(capsys):
    terminal, end = os.openpty()
    before = os.dup(2)
    os.dup2(end, 2)
    try:
        bar = Shown(Bar)
        bar.begin()
        say("Ctrl-C received")
        assert os.read(terminal, 1000) == b"\r\x1b[2Klockstep: Ctrl-C received\r\n"
        bar.end()
        say("saved")
        assert os.read(terminal, 1000) == b"lockstep: saved\r\n"
    finally:
        os.dup2(before, 2)
        for fd in (terminal, end, before):
            os.close(fd)


@contextlib.contextmanager
def on_terminal(fd):
    """A terminal in the place of a file descriptor, and what can be read of it."""
    terminal, end = os.openpty()
    before = os.dup(fd)
    os.dup2(end, fd)
    try:
        with open(end, "w", closefd=False) as stream:
            yield terminal, stream
    finally:
        os.dup2(before, fd)
        for each in (terminal, end, before):
            os.close(each)


def written_to(terminal, mark):
    """What was written to a terminal, up to this mark and what came with it: a read returns what is
    there at the moment."""
    text = ""
    while not re.search(mark, text):
        assert select.select([terminal], [], [], 10)[0], f"{mark} did not come: {text!r}"
        text += os.read(terminal, 5000).decode(errors="replace")
    return text


def test_the_bar_gives_way_to_lines_where_the_script_draws_bars_of_its_own(monkeypatch):
    with on_terminal(1) as (terminal, stream):
        monkeypatch.setattr(sys, "stdout", stream)
        with tqdm(total=3, file=stream):
            shown = Shown(Bar)
            shown.run_pass()
        written = written_to(terminal, r"\r\x1b\[2Kepoch 1/2  step 3/3 ")
        assert "\x1b[?25l" not in written, "a live display hides the cursor"
        shown.run_pass()  # no bar is left
        assert written_to(terminal, "━")
        monkeypatch.undo()


def test_a_bar_that_the_script_writes_into_a_file_is_no_reason_to_give_way(tmp_path, capsys):
    with (tmp_path / "log").open("w") as log, tqdm(total=3, file=log):
        Shown(Bar).run_pass()
    assert "━" in capsys.readouterr().out
