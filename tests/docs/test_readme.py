"""README.md fits a laptop's page and a phone's, and what it shows is what runs."""

import json
import re
from pathlib import Path

import markdown
import pytest
from browser import browse
from warm import run_here

__all__ = ["browse", "run_here"]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
WIDTHS = (830, 360)  # of the column in which GitHub shows a README on a laptop, and of a phone
# GitHub's rules for what has a width, as of 2026: other fonts are a little narrower than DejaVu.
STYLE = """
html { scrollbar-width: none; }
body { margin: 0; padding: 16px; font: 16px/1.5 sans-serif; overflow-wrap: break-word; }
pre { padding: 16px; overflow: auto; font-size: 85%; line-height: 1.45; }
code { font-family: monospace; font-size: 85%; padding: .2em .4em; white-space: break-spaces; }
pre > code { font-size: 100%; padding: 0; white-space: pre; }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse; }
th, td { padding: 6px 13px; border: 1px solid; }
ul { padding-left: 2em; }
img { max-width: 100%; }
"""
MEASURE = """<script>
const found = {}
for (const width of %s) {
  const frame = document.createElement("iframe")
  frame.width = width; frame.height = 900; frame.style.border = 0; frame.src = "page.html"
  frame.onload = () => {
    const body = frame.contentDocument
    const cut = [...body.querySelectorAll("pre, table")].filter(block => block.scrollWidth > block.clientWidth)
    found[width] = {
      blocks: body.querySelectorAll("pre, table").length,
      cut: cut.map(block => block.textContent.trim().split("\\n")[0]),
      wide: body.documentElement.scrollWidth > width,
    }
    document.title = JSON.stringify(found)
  }
  document.body.append(frame)
}
</script>"""


@pytest.fixture
def lay_out(browse, tmp_path):
    """``lay_out(text)``: by width, what of this Markdown does not fit."""

    def run(text):
        html = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
        (tmp_path / "page.html").write_text(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{html}")
        (tmp_path / "frames.html").write_text(f"<!doctype html><meta charset=utf-8><body>{MEASURE % json.dumps(WIDTHS)}")
        title = re.search("<title>(.*)</title>", browse((tmp_path / "frames.html").as_uri()).stdout)
        return {int(width): seen for width, seen in json.loads(title[1]).items()}

    return run


@pytest.mark.long
@pytest.mark.timeout(150)
def test_no_code_and_no_table_is_cut_on_a_laptop_or_a_phone(lay_out):
    seen = lay_out(README)
    assert set(seen) == set(WIDTHS)
    for width, found in seen.items():
        assert found["blocks"] > 7
        assert (found["cut"], found["wide"]) == ([], False), f"at {width} pixels"


@pytest.mark.long
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("```sh\npip install torch --index-url https://download.pytorch.org/whl/cpu\n```", {360}),
        (f"```sh\n{'x' * 120}\n```", {830, 360}),
        ("| a | b |\n|---|---|\n| " + "x" * 20 + " | " + "x" * 20 + " |", {360}),
        ("```sh\npip install .\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |", set()),
    ],
)
def test_what_does_not_fit_is_found(lay_out, text, cut):
    assert {width for width, found in lay_out(text).items() if found["cut"]} == cut


@pytest.mark.long
@pytest.mark.timeout(150)
def test_a_page_that_is_too_wide_is_found(lay_out):
    found = lay_out(f'<div style="width: 500px">{"x " * 9}</div>')
    assert {width: seen["wide"] for width, seen in found.items()} == {830: False, 360: True}


SCRIPT = """
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(160, 3, generator=torch.Generator().manual_seed(0)), torch.arange(160) % 2)
loss_fn = nn.CrossEntropyLoss()


def make_model():
    torch.manual_seed(0)
    return nn.Linear(3, 2)
"""
[DIFF] = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)


def side(sign):
    return SCRIPT + "".join(f"{line[1:]}\n" for line in DIFF.splitlines() if line[:1] in ("", " ", sign))


@pytest.mark.quick
def test_the_script_that_is_shown_trains_the_same_weights_on_one_process_and_two(run_here):
    script = side("+").replace("range(5)", "range(1)") + "\nteam.print(model.weight.tolist())\n"
    one, two = (run_here(script, "--nproc", str(nproc), "--progress", "off") for nproc in (1, 2))
    assert one.returncode == two.returncode == 0, one.stderr + two.stderr
    (_, first), (_, second) = (done.stdout.splitlines() for done in (one, two))
    assert first == second
    assert first.startswith("[[")


def test_the_script_that_it_was_trains_too(capsys):
    exec(compile(side("-"), "before.py", "exec"), {})
    lines = [line for line in DIFF.splitlines() if line.startswith("+") and line[1:].strip()]
    starts = ("import lockstep", "team = ", "model, opt, loader", "for epoch", "for batch", "for x, y", "team.backward")
    for start in starts:
        assert [line for line in lines if line[1:].strip().startswith(start)], start


def test_figures_of_speed_are_those_of_the_results():
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    speed = README.partition("## Speed")[2].partition("## ")[0]
    for nproc, column in ((1, 0), (2, 1)):
        section = results.partition(f"## loop_overhead, {nproc} process")[2]
        for name in ("ignite", "fabric", "lockstep", "accelerate"):
            measured = re.search(rf"^\| {name} .*\| +(\d\.\d+) \[", section, flags=re.MULTILINE)[1]
            cells = re.search(rf"^\| \**{name}\** \| (.*) \|$", speed, flags=re.MULTILINE | re.IGNORECASE)[1].split(" | ")
            assert cells[column] == f"{float(measured):.2f}", name
    for measured in ("| 0.957 |", "| 0.978 |", "| 1.064 [", "| 1.063 [", "| 83.9 |", "| 70.0 |", "| 541 |", "| 526 |"):
        assert measured in results
        number = re.search(r"[\d.]+", measured)[0]
        assert number in speed or f"{float(number):.2f}" in speed, number
    for measured, shown in (("| 1.044 [1.029", "and 1.04 with 5M"), ("| 1.030 [1.008", "takes 1.03 of the time of DDP")):
        assert measured in results.partition("--nproc 3 --shards 8")[2].partition("--link")[0]
        assert shown in speed.replace("\n  ", " ")
    assert "391 now" in results
    assert "1,693 and 1,787" in results
    assert "1.79 ms" in speed
    assert "0.39 ms" in speed
    assert "| V = 1 | 18.7 ms | 32.3 ms" in results
    assert "took 32.3 ms, and 18.7 ms" in speed


def test_lines_of_verify_are_those_that_the_tutorial_shows():
    """The tutorial's lines are compared with what verify prints (test_tutorial.py)."""

    def form(line):
        return re.sub(r"[0-9a-f]{16,}|\d[\d.,]*\d|\d", "#", line)

    tutorial = (ROOT / "docs" / "tutorial.md").read_text().splitlines()
    printed = {form(line).replace("  ", " ") for line in tutorial if re.match(r"\[\d/\d\]|PASS ", line)}
    sample = [" ".join(line.split()) for line in re.findall(r"^(?:- )?`((?:\[|PASS )[^`]+)`$", README, flags=re.MULTILINE)]
    assert len(sample) == 5
    for line in sample:
        assert form(line.replace("loss 0.130424, ", "")) in printed, line
