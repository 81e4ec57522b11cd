"""The pages for contributors: what docs/internals/extending.md adds is added to a copy of the
sources and trains; files that the pages name exist; the first page is short."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from warm import run_here

__all__ = ["run_here"]

ROOT = Path(__file__).parents[2]
INTERNALS = ROOT / "docs" / "internals"
PAGE = (INTERNALS / "extending.md").read_text()
FILES = re.findall(r"```python (src\S+)\n(.*?)```", PAGE, flags=re.DOTALL)
PACKAGE = dict(re.findall(r"```\w+ lockstep-sizes/(\S+)\n(.*?)```", PAGE, flags=re.DOTALL))
ROWS = re.findall(r"```diff\n--- a/\S+\n\+\+\+ b/(\S+)\n(.*?)```", PAGE, flags=re.DOTALL)

SCRIPT = """
import collections, sys, torch, lockstep
team = lockstep.join()
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(24, 3))
model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 5))
seen = collections.deque(maxlen=4)
if "register" in sys.argv:
    team.register("seen", seen)
for epoch in team.epochs(2):
    for batch in loader:
        if "stop" in sys.argv and team.step == 7:
            raise RuntimeError("stopped")
        for (x,) in batch.shards:
            team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(team.step)
team.print(list(seen), [round(value, 5) for value in model.weight.flatten().tolist()])
"""


def put_row(text, row):
    """The text with the lines of a diff that begin with +, each beside the line of the text that
    stands next to it."""
    lines, last, waiting = text.splitlines(), None, []
    for line in row.splitlines():
        if line.startswith("+"):
            if last is None:
                waiting.append(line[1:])
            else:
                last += 1
                lines.insert(last, line[1:])
            continue
        assert lines.count(line[1:]) == 1, f"not in the file (once): {line[1:]!r}"
        last = lines.index(line[1:])
        lines[last:last] = waiting
        last, waiting = last + len(waiting), []
    assert not waiting
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A copy of the sources, with all that the page adds."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name, text in FILES:
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    for name, row in ROWS:
        (copy / name).write_text(put_row((copy / name).read_text(), row))
    return copy / "src"


@pytest.fixture
def train(sources, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(sources))

    def run(*args, options=(), status=0):
        command = [sys.executable, "-m", "lockstep", "run", "--progress", "off", *options, "train.py", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        assert done.returncode == status, done.stderr
        return done

    return run


@pytest.fixture
def package(tmp_path, monkeypatch, sources):
    """A directory with the package of its own, as pip would install it."""
    site = tmp_path / "site"
    about = site / "lockstep_sizes-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "lockstep_sizes.py").write_text(PACKAGE["lockstep_sizes.py"])
    project = tomllib.loads(PACKAGE["pyproject.toml"])["project"]
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "\n".join(f"{name} = {where}" for name, where in points.items()) for group, points in groups]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{sources}:{site}")


def test_the_first_page_for_contributors_is_short():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *sorted(INTERNALS.glob("*.md"))], ids=lambda page: page.name)
def test_files_of_the_sources_that_a_page_names_exist(page):
    text = re.sub(r"^```(?!text).*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?<![\w/])(?:_[a-z]+|testing|integrations)/[\w/]*(?:\.py)?", text))
    missing = [name for name in named if not (ROOT / "src" / "lockstep" / name).exists()]
    missing += [name for name in re.findall(r"(?<![\w/])tests/[\w/]+(?:\.py)?", text) if not (ROOT / name).exists()]
    assert missing == []
    assert named or page.name not in ("CONTRIBUTING.md", "architecture.md")


def test_each_of_the_three_within_is_one_file_and_one_row():
    assert [Path(name).name for name, _ in FILES] == ["small_steps.py", "deques.py", "late.py"]
    assert [Path(name).name for name, _ in ROWS] == ["extensions.py", "registry.py", "config.py"]


@pytest.mark.long
def test_all_that_is_added_trains_and_resumes(train, package, run_here, tmp_path):
    late = ("--nproc", "2", "--strategy", "late", "--checkpoint-every", "5", "--run-dir", "run", "--sizes-from", "3")
    stopped = train("register", "stop", options=late, status=1)
    resumed = train("register", options=late)
    whole = run_here(SCRIPT, "--nproc", "2", "--progress", "off", "--strategy", "ddp")
    answers = [done.stdout.splitlines()[-1] for done in (resumed, whole)]
    assert answers[0] == answers[1]
    assert answers[0].startswith("[7, 8, 9, 10]")
    assert re.findall(r"step \d+ has \d samples", stopped.stderr) == ["step 5 has 4 samples"]
    command = [sys.executable, "-m", "lockstep", "sizes", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("5 5 4 5 ")
