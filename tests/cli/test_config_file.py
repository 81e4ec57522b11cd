"""``--config``: what a file sets, what takes precedence over it, and what is refused."""

import re

import pytest

from lockstep._base.config import RunConfig
from lockstep._launch.options import LaunchOptions

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def call(command, tmp_path, monkeypatch):
    """``call("run", ...)``: the command's status, output and errors, in a directory with ``file``
    as run.toml."""
    monkeypatch.chdir(tmp_path)

    def run(*args, file=None):
        if file is not None:
            (tmp_path / "run.toml").write_text(file, encoding="utf-8")
        return command(*args)

    return run


def test_a_file_sets_options_of_the_launcher_and_of_the_run(call, asked):
    file = """
        nproc-per-node = 2
        module = true
        log-dir = "logs"
        shards = 8
        strategy = "ddp"
        timeout = 9
        checkpoint-every = 500
        fresh = true
        allow = ["data", "shards"]
    """
    call("run", "--config", "run.toml", "package.train", file=file)
    [(*_, options, settings)] = asked
    assert (options.nproc_per_node, options.is_module, str(options.log_dir)) == ("2", True, "logs")
    given = {"shards": 8, "strategy": "ddp", "timeout_s": 9.0, "fresh": True, "allow": ("data", "shards")}
    assert settings == {**given, "checkpoint_every": "500"}
    assert RunConfig(**settings).interval == 500


def test_the_command_line_comes_before_the_environment_and_that_before_the_file(call, asked, monkeypatch):
    file = 'nnodes = 4\nmax-restarts = 4\nrdzv-endpoint = "host:1"\nshards = 8\n'
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    call("run", "--config", "run.toml", "--nnodes", "1", "--shards", "6", "train.py", file=file)
    call("run", "--nnodes", "1", "train.py", "--config", "run.toml")
    first, second = (call[2:] for call in asked)
    assert (first[0].nnodes, first[0].max_restarts, first[0].rdzv_endpoint) == ("1", 2, "host:1")
    assert first[1] == {"shards": 6}
    assert second == (LaunchOptions(nnodes="1", max_restarts=2), {}), "what follows the script is the script's"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shard = 8", "shard: .* shards\\?"),
        ("nproc_per_node = 2", "nproc_per_node: .* nproc-per-node\\?"),
        ("timeout_s = 2.5", "timeout_s: .* timeout\\?"),
        ("help = true", "help: "),
        ("[training]", "training: "),
        ('shards = "x"', "shards = 'x': "),
        ("shards = 1.5", "shards = 1.5: "),
        ("fresh = 2", "fresh = 2: "),
    ],
)
def test_a_key_or_value_that_cannot_be_meant_is_refused_with_the_file(call, asked, refusals, line, words):
    status, out, said = call("run", "--config", "run.toml", "train.py", file=f"keeps = 1\n{line}\n")
    assert (status, out, asked) == (2, "", [])
    assert refusals() == ["config-file-keys"]
    assert re.search(rf"^  keeps: .*\n  {words}", said, flags=re.MULTILINE), "all that is wrong is said at once"


def test_a_file_that_is_missing_or_not_toml_is_told(call, refusals):
    call("run", "--config", "run.toml", "train.py")
    call("run", "--config", "run.toml", "train.py", file="shards: 8\n")
    assert refusals() == ["config-file-unreadable", "config-file-not-toml"]


def test_a_file_that_is_nested_too_deeply_or_too_large_is_told(call):
    for text in ("shards = " + "[" * 100_000, "# " + "-" * 2_000_000):
        status, out, said = call("run", "--config", "run.toml", "train.py", file=text)
        assert (status, out) == (2, "")
        assert said.startswith("error: --config run.toml: ")


@pytest.mark.parametrize("verb", ["doctor", "tune"])
def test_commands_with_the_options_of_a_run_take_its_file(call, verb):
    status, _, said = call(verb, "--config", "run.toml", "train.py", file="shards = 8\nmax-restarts = 1\nkeeps = 2\n")
    assert status == 2
    assert re.search(rf"keeps: .* {verb} .* keep\?", said)
    assert "shards:" not in said
