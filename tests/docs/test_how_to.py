"""The scripts of the how-to pages run as they stand there, and give one answer on one process and
on several."""

import hashlib
import importlib.util
import re
from pathlib import Path

import pytest
from launchers import nursery, python_here
from warm import run_here

__all__ = ["nursery", "python_here", "run_here"]

ROOT = Path(__file__).parents[2]
OWN_TESTS = (
    "ports.md",  # test_ports.py
    "testing.md",  # test_testing_page.py
    *("clouds.md", "kubernetes.md", "ray-and-submitit.md"),  # tests/engines
)
PAGES = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if page.name not in OWN_TESTS)
BLOCK = re.compile(r'^```python(?: title="(\w+\.py)")?\n(.*?)^```', flags=re.DOTALL | re.MULTILINE)
SCRIPTS = [(page.stem, name, text) for page in PAGES for name, text in BLOCK.findall(page.read_text())]
FINE_TUNE = "fine_tune.py"  # a port as well
# or with a test of their own
NO_TRAINING = (
    "before.py",
    "after.py",
    "in_a_notebook.py",
    "predict.py",
    "train_ddp.py",
    "with_trainer.py",
    "evaluate_ddp.py",
)
TRAINING = [script for script in SCRIPTS if script[1] not in NO_TRAINING]
STREAMS = ("hugging-face-streams", "webdataset")
MIGRATIONS = {page for page, name, _ in SCRIPTS if name == "before.py"}
NEEDED = ("accelerate", "datasets", "lightning", "transformers", "webdataset")

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def require_imports(require):
    """Ask for those of ``NEEDED`` that a script imports."""

    def check(text):
        for name in NEEDED:
            missing = re.search(rf"^(import|from) {name}\b", text, re.MULTILINE) and not importlib.util.find_spec(name)
            require(name, f"{name} is not installed (pip install {name})" if missing else None)

    return check


@pytest.fixture
def run_plainly(python_here, tmp_path):
    """``run_plainly(text)``: its output, in one process and with one thread, in the way of any
    script."""

    def run(text):
        script = tmp_path / "plain" / "script.py"
        script.parent.mkdir()
        script.write_text(text)
        env = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = python_here(script, cwd=script.parent, env=env, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def digests(run_dir):
    files = run_dir.rglob("model*.safetensors")
    return {str(file.relative_to(run_dir)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_every_python_block_is_a_script_with_a_name():
    assert SCRIPTS
    assert [(page, text.splitlines()[0]) for page, name, text in SCRIPTS if not name] == []
    assert {page for page, *_ in SCRIPTS} == {page.stem for page in PAGES}


def test_every_command_runs_a_script_of_its_page():
    for page in PAGES:
        for command in re.findall(r"^\$ (.*)", page.read_text(), flags=re.MULTILINE):
            name = re.fullmatch(
                r"(?:lockstep run --nproc-per-node 2|torchrun --nproc-per-node 2|lockstep verify|python) (\w+\.py)", command
            )
            assert name, f"{page.name}: {command}"
            assert name[1] in {script for stem, script, _ in SCRIPTS if stem == page.stem}


@pytest.mark.long
@pytest.mark.parametrize(("page", "name", "text"), TRAINING, ids=[f"{page}-{name}" for page, name, _ in TRAINING])
def test_a_script_of_a_page_gives_one_answer_on_one_process_and_on_two(
    page, name, text, run_here, python_here, require_imports, tmp_path
):
    require_imports(text)
    (tmp_path / name).write_text(text)
    told, left = [], []
    for nproc in ("1", "2"):
        run_dir = tmp_path / "runs" / f"{Path(name).stem}-{nproc}"
        options = ("--nproc-per-node", nproc, "--threads", "1", "--device", "cpu", "--run-dir", str(run_dir))
        done = run_here(tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        told.append(re.findall(r"^epoch \d+: .*$", done.stdout, flags=re.MULTILINE))
        left.append(digests(run_dir))
    assert len(told[0]) > 1
    assert left[0]
    assert told[0] == told[1]
    assert left[0] == left[1]
    if page == "early-stopping":  # its best weights are used without lockstep
        [predict] = [text for _, name, text in SCRIPTS if name == "predict.py"]
        (tmp_path / "predict.py").write_text(predict)
        done = python_here(tmp_path / "predict.py")
        assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr
        assert "lockstep" not in re.sub("#.*", "", predict)


@pytest.mark.long
@pytest.mark.parametrize("page", STREAMS)
def test_a_stream_of_a_page_goes_on_where_it_failed(page, run_here, require_imports, tmp_path):
    [text] = [text for stem, _, text in SCRIPTS if stem == page]
    require_imports(text)
    failing = text.replace(
        "    for batch in loader:\n", "    for batch in loader:\n        team.step < 21 or exec('1 / 0')\n"
    )
    options = ("--threads", "1", "--device", "cpu", "--checkpoint-every", "3")
    left = []
    for name, runs in {"whole": [(text, "1")], "resumed": [(failing, "1"), (text, "2")]}.items():
        for script, nproc in runs:
            (tmp_path / "script.py").write_text(script)
            run_dir = tmp_path / "runs" / name
            done = run_here(tmp_path / "script.py", "--nproc-per-node", nproc, *options, "--run-dir", str(run_dir))
            assert done.returncode == (script is failing), done.stderr
        left.append(digests(run_dir / "checkpoints" / "step-00000032"))
    assert left[0]
    assert left[0] == left[1]


@pytest.mark.long
@pytest.mark.parametrize("page", sorted(MIGRATIONS))
def test_before_and_after_save_the_same_weights(page, run_here, run_plainly, require_imports, tmp_path):
    import torch  # only here: nothing else of this file needs it

    texts = {(stem, name): text.replace("shuffle=True", "shuffle=False") for stem, name, text in SCRIPTS}
    texts = {key: text.replace("shards=8", "shards=1") for key, text in texts.items()}
    # which the page on Fabric links to
    ported = texts.get((page, "after.py")) or texts["accelerate", "after.py"]
    require_imports(texts[page, "before.py"])
    before = run_plainly(texts[page, "before.py"])
    done = run_here(ported, "--threads", "1", "--device", "cpu", "--run-dir", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": loss") == before.count(": loss") == 5
    expected, found = torch.load(tmp_path / "plain" / "model.pt"), torch.load(tmp_path / "model.pt")
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.long
def test_a_function_is_launched_as_from_a_notebook(run_plainly):
    (text,) = [text for page, _, text in SCRIPTS if page == "notebooks"]
    assert re.fullmatch(r"(?s).*\[\d[\d., ]+\]\n", run_plainly(text))
