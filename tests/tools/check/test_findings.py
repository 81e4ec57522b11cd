"""What the reading of a script's loop finds, and what it leaves alone."""

import ast
import re
import sys
from pathlib import Path

import pytest

from lockstep._tools.check.files import read_script
from lockstep._tools.check.findings import RULES
from lockstep._tools.check.reader import read_source

ROOT = Path(__file__).parents[3]
CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.py"))
IDIOMS = ROOT / "tests" / "idioms"
MARK = re.compile(r"# (LS\d+)$")
PREAMBLE = "import copy\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\nimport lockstep\n"

sys.path.insert(0, str(IDIOMS))
from table import ROWS, TABLE, TOPICS  # noqa: E402
from topics.promises import Differs, Equal  # noqa: E402


def codes(findings):
    """As idioms write them."""
    return " ".join(sorted({f.code for f in findings}))


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_each_loop_of_the_corpus_has_the_findings_that_its_comments_say_and_no_others(path):
    lines = [(number, MARK.search(line)) for number, line in enumerate(path.read_text().splitlines(), 1)]
    expected = {(number, match[1]) for number, match in lines if match}
    assert {(f.line, f.code) for f in read_source(path.read_text(), path.name)} == expected


def idioms():
    """The idioms, each with its findings. What stands before one, down from the one above it, is
    its own, such as a class."""
    for name, rows in TABLE.items():
        path = Path(TOPICS[name].__file__)
        left = read_script(path)
        ends = {node.name: node.end_lineno for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        for row in sorted(rows, key=lambda row: row.line):
            mine = [finding for finding in left if Path(finding.path) == path and finding.line <= ends[row.name]]
            left = [finding for finding in left if finding not in mine]
            yield row, mine
        assert left == [], "in what idioms share"


@pytest.mark.long
def test_each_idiom_has_the_findings_that_it_says_and_no_others():
    found = {row.name: (codes(findings), row.found) for row, findings in idioms()}
    assert {name: both for name, both in found.items() if both[0] != both[1]} == {}
    assert len(found) == len(ROWS)


def test_an_idiom_that_is_equal_on_every_number_of_processes_has_no_finding_of_another_answer():
    assert [row.name for row in ROWS if isinstance(row.promise, Equal) and re.search("LS[13]", row.found)] == []


def test_idioms_that_differ_are_found():
    differ = [row for row in ROWS if isinstance(row.promise, Differs)]
    missed = [row.name for row in differ if "LS1" not in row.found]
    assert missed == ["summed_by_all_reduce"]  # gathered as it should be, and equal up to rounding


@pytest.mark.parametrize(
    "path", [*ROOT.glob("examples/*.py"), *ROOT.glob("src/lockstep/_cli/template/*.py")], ids=lambda p: p.stem
)
def test_nothing_is_found_in_examples(path):
    assert [str(finding) for finding in read_script(path)] == []


def test_nothing_is_found_in_the_code_of_the_documentation():
    wrong = []
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for block in re.findall(r"```python[^\n]*\n(.*?)```", path.read_text(), re.DOTALL):
            text = block if "import lockstep" in block or "shards" not in block else PREAMBLE + block
            wrong += [(path.name, finding.code, finding.name) for finding in read_source(text)]
    assert wrong == [("testing.md", "LS102", "seen")]  # that page shows how a test fails


def test_every_code_is_in_the_documentation_and_found_in_some_loop():
    page = (ROOT / "docs" / "check-codes.md").read_text()
    assert re.findall(r"^### (LS\d+)$", page, re.MULTILINE) == list(RULES)
    marked = {code for path in CORPUS for code in re.findall(r"# (LS\d+)$", path.read_text(), re.MULTILINE)}
    assert marked.union(*(row.found.split() for row in ROWS)) == set(RULES)


def test_modules_beside_the_script_are_read_and_installed_ones_are_not(tmp_path):
    body = """
def train(team, model, optimizer, loader):
    seen = 0
    for batch in loader:
        for x, y in batch.shards:
            seen += len(x)
            team.backward(model(x).mean())
        optimizer.step()
    print(seen)
"""
    package = tmp_path / "project" / "lib"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "engine.py").write_text("from .inner import train\n")
    (package / "inner.py").write_text(body)
    installed = tmp_path / "project" / "site-packages"
    installed.mkdir()
    (installed / "other.py").write_text(body)
    script = tmp_path / "project" / "train.py"
    script.write_text("import lockstep\nfrom lib.engine import train\nteam = lockstep.join()\ntrain(team, None, None, [])\n")
    [finding] = read_script(script)
    assert (Path(finding.path), finding.line, finding.code) == (package / "inner.py", 6, "LS102")
    assert read_script(installed / "other.py") == []


@pytest.mark.parametrize("content", [b"def f(:\n", b"\xff\xfe", b"\x00", b"", b"x = " + b"(" * 5000])
def test_nothing_is_found_in_what_cannot_be_read(tmp_path, content):
    path = tmp_path / "train.py"
    path.write_bytes(content)
    assert read_script(path) == []
    assert read_script(tmp_path / "none.py") == []


def test_a_comment_accepts_one_code_or_all():
    loop = "for batch in loader:\n    for x in batch.shards:\n        n = len(x){}\nprint(n)\n"
    text = "import lockstep\n" + loop
    assert [f.code for f in read_source(text.format(""))] == ["LS101"]
    assert read_source(text.format("  # lockstep: ok")) == []
    assert read_source(text.format("  # lockstep: ok LS101, LS102")) == []
    assert len(read_source(text.format("  # lockstep: ok LS102"))) == 1


REMEDIES = {
    "self.criterion = team.prepare(self.criterion)": """
class Centred(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, x):
        self.centre.lerp_(x.detach().mean(0), 0.3)
        return (x - self.centre).square().mean()

class Trainer:
    def __init__(self):
        self.criterion = Centred()

    def fit(self, batch):
        for x in batch.shards:
            team.backward(self.criterion(x))

Trainer().fit(batch)
""",
    'team.all_reduce(torch.tensor(worst), op="max")': """
worst = 0.0
for x in batch.shards:
    worst = max(worst, x.max().item())
print(worst)
""",
    "xs, targets = copy.deepcopy((xs, targets))": """
data = [(torch.randn(3), {"box": torch.rand(1)}) for _ in range(16)]
loader = team.prepare(torch.utils.data.DataLoader(data, 8, collate_fn=lambda rows: tuple(zip(*rows))))
for batch in loader:
    for xs, targets in batch.shards:
        for target in targets:
            target["box"] *= 2
""",
    "rows = copy.deepcopy(rows)": """
def stack(rows):
    for row in rows:
        row["x"] *= 2
    return torch.stack([row["x"] for row in rows])

data = [{"x": torch.randn(3)} for _ in range(16)]
team.prepare(torch.utils.data.DataLoader(data, 8, collate_fn=stack))
""",
    "move it outside of batch.shards": """
class Average:
    def __init__(self, model):
        self.model = copy.deepcopy(model)

    def update(self, model):
        for a, p in zip(self.model.parameters(), model.parameters()):
            a.lerp_(p, 0.1)

model = torch.nn.Linear(2, 1)
average = Average(model)
for x in batch.shards:
    team.backward(model(x).mean())
    average.update(model)
""",
}


@pytest.mark.parametrize("remedy", REMEDIES)
def test_the_line_to_write_names_what_the_loop_has(remedy):
    [finding] = read_source(PREAMBLE + REMEDIES[remedy])
    assert remedy in finding.remedy
