"""``lockstep check``."""

import json
import subprocess
import sys

import pytest

LOOP = """\
import lockstep
team = lockstep.join()
{before}
for epoch in team.epochs(3):
    for batch in loader:
        for x, y in batch.shards:
            loss = model(x).mean()
            team.backward(loss)
            {inside}
        optimizer.step()
    {after}
"""
COUNTED = {"before": "seen = 0", "inside": "seen += len(x)", "after": "print(seen)"}
RIGHT = {"before": "", "inside": "batch.add(loss=loss)", "after": "print(loader.averages)"}


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def test_a_finding_has_its_place_its_code_and_the_line_to_write(command, script):
    path = script(LOOP.format(**COUNTED))
    status, out, _ = command("check", path)
    assert status == 1
    assert f"{path}:9:13: LS102" in out
    assert "`seen`" in out
    assert "batch.add(seen=" in out


def test_nothing_found_is_status_0(command, script):
    status, out, _ = command("check", script(LOOP.format(**RIGHT)))
    assert (status, out) == (0, "nothing found in 1 script\n")


def test_json_has_all_fields(command, script):
    path = script(LOOP.format(**COUNTED))
    status, out, _ = command("check", path, "--json")
    [finding] = json.loads(out)["findings"]
    assert status == 1
    assert {key: finding[key] for key in ("code", "path", "line", "column", "name")} == {
        "code": "LS102",
        "path": path,
        "line": 9,
        "column": 13,
        "name": "seen",
    }
    assert finding["remedy"]


@pytest.mark.parametrize(
    ("args", "word"),
    [((), "no script"), (("none.py",), "none.py"), (("--epochs",), "option")],
)
def test_wrong_usage_is_status_2(command, args, word):
    status, _, err = command("check", *args)
    assert status == 2
    assert word in err


def test_a_script_that_python_cannot_parse_is_status_2(command, script):
    status, _, err = command("check", script("def main(:\n"))
    assert status == 2
    assert "line 1" in err


@pytest.mark.parametrize(
    "text", ["print(1)\n", "import lockstep\nprint(lockstep.__version__)\n", "for x in batch.shards: pass\n"]
)
def test_a_script_that_does_not_train_with_lockstep_is_status_2(command, script, text):
    path = script(text)
    status, out, err = command("check", path)
    assert (status, out) == (2, "")
    assert path in err
    assert "lockstep.join()" in err


def test_scripts_that_train_are_read_among_others(command, script, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("x = 1\n")
    path = script(LOOP.format(**COUNTED))
    status, out, _ = command("check", str(other), path, "--json")
    assert status == 1
    assert json.loads(out)["scripts"] == [path]


def test_neither_the_script_nor_torch_is_imported(script):
    path = script("raise SystemExit(3)\n" + LOOP.format(**COUNTED))
    source = (
        "import sys; from lockstep._cli.main import main\n"
        f"try: main(['check', {path!r}])\n"
        "finally: print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("set()\n")
