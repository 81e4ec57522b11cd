"""Promises of ``lockstep report``: pages made of real runs, and looked at as a browser does."""

import html.parser
import re
import shutil
import types
from pathlib import Path

import pytest
from crew import warm_server
from warm import run_on

from lockstep._cli.main import main

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

# It does what it can to harm a page: in its name, in those of its metrics, and in what it fails
# with.
SCRIPT_NAME, METRIC, RUN = "<b>.py", "<script>alert(1)</script>", "<u>-1"
SCRIPT = f"""
import os, torch, lockstep
team = lockstep.join()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, test = (torch.utils.data.TensorDataset(torch.randn(num, 4)) for num in (32, 16))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 8))
for epoch in team.epochs(3):
    for batch in loader:
        for (x,) in batch.shards:
            loss = model(x).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        team.log(loss=batch["loss"], nothing=float("nan") if team.step % 2 else 1.0, **{{{METRIC!r}: 0.5}})
        if os.path.exists("fail") and team.step == 7:
            raise ValueError("a <i>bad</i> thing")
    with team.evaluate(model, torch.utils.data.DataLoader(test, 8)) as evaluation:
        for batch in evaluation:
            for (x,) in batch.shards:
                batch.add(loss=model(x).square().mean())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, request, outlives_tests):
    """Two runs: one that failed, and the same as it was resumed with another number of processes,
    to its end."""
    place, server = tmp_path_factory.mktemp("reports"), warm_server(request, outlives_tests)
    (place / SCRIPT_NAME).write_text(SCRIPT)
    (place / "fail").touch()
    words = ("--shards", "2", "--checkpoint-every", "2", "--log-every", "1", "--progress", "off", "--run-dir", f"runs/{RUN}")
    done = run_on(server, place, ["--nproc", "2", *words, SCRIPT_NAME])
    assert done.returncode == 1, done.stderr
    shutil.copytree(place / "runs" / RUN, place / "failed")
    (place / "fail").unlink()
    done = run_on(server, place, ["--nproc", "1", *words, SCRIPT_NAME])
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def report(capsys):
    """``lockstep report ARGS``: its exit status, and what it printed."""

    def call(*args):
        with pytest.raises(SystemExit) as ended:
            main(["report", *map(str, args)])
        captured = capsys.readouterr()
        return types.SimpleNamespace(status=ended.value.code or 0, out=captured.out, err=captured.err)

    return call


@pytest.fixture
def page(report, tmp_path):
    """``page(PATH)``: the text of its report."""

    def make(path):
        file = tmp_path / "page.html"
        done = report(path, "--output", file)
        assert done.status == 0, done.err
        return file.read_text()

    return make


class Elements(html.parser.HTMLParser):
    """The elements of a page: name, attributes, the text in it and the names of those around it."""

    def __init__(self, text):
        super().__init__()
        self.all, self._open = [], []
        self.feed(text)
        assert [one.tag for one in self._open] == []

    def handle_starttag(self, tag, attrs):
        around = [one.tag for one in self._open]
        self.all.append(types.SimpleNamespace(tag=tag, attrs=dict(attrs), text="", around=around))
        if tag != "meta":
            self._open.append(self.all[-1])

    def handle_startendtag(self, tag, attrs):
        self.all.append(types.SimpleNamespace(tag=tag, attrs=dict(attrs), text="", around=[one.tag for one in self._open]))

    def handle_endtag(self, tag):
        assert self._open.pop().tag == tag, f"an element {tag} is not closed in order"

    def handle_data(self, data):
        for one in self._open:
            one.text += data

    def texts(self, tag):
        return [one.text.strip() for one in self.all if one.tag == tag]


def test_a_page_is_one_file_in_the_directory_that_loads_nothing(place, report):
    done = report(place / "runs" / RUN)
    file = place / "runs" / RUN / "report.html"
    assert (done.status, done.out) == (0, f"{file}: {len(file.read_bytes()) / 1e3:.0f} kB\n")
    text = file.read_text()
    for word in ("http://", "https://", "src=", "href=", "url(", "@import", "fetch("):
        assert word not in text
    assert "default-src 'none'" in text


def test_every_value_that_was_logged_has_a_curve_and_a_text_alternative(place, page):
    found = Elements(page(place / "runs" / RUN))
    captions = found.texts("figcaption")
    assert {"loss", "nothing", METRIC} <= set(captions)
    pictures = [one for one in found.all if one.tag == "svg" and "svg" not in one.around]
    ids = [one.attrs["id"] for one in found.all if "id" in one.attrs]
    assert len(ids) == len(set(ids))
    for picture in pictures:
        assert picture.attrs["role"] == "img"
        assert set(picture.attrs["aria-labelledby"].split()) <= set(ids)
    # loss twice: training and evaluation
    assert len([one for one in found.all if one.tag == "polyline"]) == 4
    assert [text for text in found.texts("desc") if text.startswith("loss ") and "training" in text]
    assert "6 values not finite" in found.all[0].text


def test_what_a_script_chooses_is_text_and_nothing_else(place, page):
    for directory in (place / "runs" / RUN, place / "failed"):
        found = Elements(page(directory))
        assert [tag for tag in ("b", "u") if any(one.tag == tag for one in found.all)] == []
        assert {one.attrs.get("class") for one in found.all if one.tag == "i"} == {None}
        assert found.texts("script") == []
        assert SCRIPT_NAME in found.texts("code")[0]
        assert METRIC in found.texts("figcaption")


def test_launches_and_restarts_are_told(place, page):
    found = Elements(page(place / "runs" / RUN))
    text, cells = found.all[0].text, found.texts("td")
    assert "12 steps in" in text
    assert "over 2 launches" in text
    assert any(re.match(r"killed .* step \d", cell) for cell in cells)
    assert "finished at step 12" in cells


def test_how_a_run_failed_is_told_with_the_words_of_the_error(place, page):
    found = Elements(page(place / "failed"))
    assert "What went wrong" in found.texts("h2")
    assert "interrupted" in found.texts("h1")[0]
    traceback = next(text for text in found.texts("pre") if "a <i>bad</i> thing" in text)
    assert "<b>.py" in traceback
    assert "interrupted" not in Elements(page(place / "runs" / RUN)).texts("h1")[0]


def test_where_the_time_of_a_step_went_is_shown(place, page):
    found = Elements(page(place / "failed"))
    assert "exchanging gradients" in found.texts("td")


def test_damage_is_passed_over_and_said(place, page, tmp_path):
    run = Path(shutil.copytree(place / "runs" / RUN, tmp_path / "run"))
    with (run / "events.jsonl").open("ab") as journal:
        journal.write(b'{"event": "step", "time_s": 1.0, "st\n\xff\xfe\n[1, 2]\n{"event": "step", "values": 3}\n')
        journal.write(b'{"event": "epoch", "step": 5, "split": [1], "num_steps": "x"}\n{"event": "slow"}\n')
    text = Elements(page(run)).all[0].text
    assert "6 lines of events.jsonl" in text
    (run / "birth.json").write_text("{")
    (run / "events.jsonl").unlink()
    text = Elements(page(run)).all[0].text
    assert "unreadable" in text
    assert "There is no event log" in text


def test_what_there_is_no_report_on_is_refused_with_a_remedy(place, report, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    for path, what, remedy in (
        ("missing", "No such file", "Pass a run directory"),
        (SCRIPT_NAME, "Not a directory", "Pass a run directory"),
        (tmp_path, "no run in", "A run creates runs/SCRIPT-N"),
    ):
        done = report(path)
        assert (done.status, done.out) == (2, "")
        assert what in done.err
        assert remedy in done.err
    assert report("runs").out.startswith(f"runs/{RUN}/report.html: ")
    done = report(f"runs/{RUN}", "--output", "missing/page.html")
    assert done.status == 2
    assert "missing/page.html" in done.err
