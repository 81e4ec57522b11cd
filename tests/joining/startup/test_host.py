"""A run is named by its script; where a host program calls the function that trains, there is none
to name it by."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep._joining.startup import host as host_module
from lockstep._joining.startup.host import Caller, Installed, host_of, host_with_handler

pytestmark = pytest.mark.timeout(60)
SITE, STDLIB, BIN, HOME = "/venv/lib/python3/site-packages", "/usr/lib/python3", "/venv/bin", "/home/me"
INSTALLED = Installed(packages=(Path(SITE), Path(STDLIB)), commands=(Path(BIN),))


def of_main(file):
    return Caller(module="__main__", file=file, is_main=True)


def module(name, folder=HOME):
    return Caller(module=name, file=f"{folder}/{name.replace('.', '/')}.py")


SUBMITIT = (module("submitit.core.utils", SITE), module("submitit.core.submission", SITE))
SCRIPT = f"{HOME}/train.py"
CASES = {
    # a script, however it is started
    "python train.py": (SCRIPT, [of_main(SCRIPT)], None),
    "a script that imports the function": (SCRIPT, [module("project.training"), of_main(SCRIPT)], None),
    "a script, by a library": (SCRIPT, [module("lightning.trainer", SITE), of_main(SCRIPT)], None),
    "python -m cProfile train.py": (SCRIPT, [Caller(module="__main__", file=SCRIPT), module("cProfile", STDLIB)], None),
    "python -m project.train": (f"{HOME}/project/train.py", [of_main(f"{HOME}/project/train.py")], None),
    "a script in the folder of commands": (f"{BIN}/train", [of_main(f"{BIN}/train")], None),
    "a child of mp.spawn": (SCRIPT, [module("__mp_main__"), module("multiprocessing.process", STDLIB)], None),
    # an installed package that trains
    "python -m mine.train": (f"{SITE}/mine/train.py", [of_main(f"{SITE}/mine/train.py")], None),
    "python -m mine": (f"{SITE}/mine/__main__.py", [module("mine.loop", SITE), of_main(f"{SITE}/mine/__main__.py")], None),
    "a command": (f"{BIN}/mine", [module("mine.loop", SITE), module("mine.cli", SITE), of_main(f"{BIN}/mine")], None),
    "a command, installed in place": (
        f"{BIN}/mine",
        [module("other.loop"), module("mine.cli"), of_main(f"{BIN}/mine")],
        None,
    ),
    # none
    "python -c": ("-c", [of_main("<string>")], None),
    "python -": ("-", [module("project.training"), of_main("<stdin>")], None),
    "an interactive session": ("", [of_main("<stdin>")], None),
    # hosts
    "submitit": (
        f"{SITE}/submitit/core/_submit.py",
        [module("project.training"), *SUBMITIT, of_main(f"{SITE}/submitit/core/_submit.py")],
        "submitit",
    ),
    "submitit, a function of the main module": (
        f"{SITE}/submitit/core/_submit.py",
        [Caller(module="__main__", file=SCRIPT), *SUBMITIT, of_main(f"{SITE}/submitit/core/_submit.py")],
        "submitit",
    ),
    "submitit, a function of an installed package": (
        f"{SITE}/submitit/core/_submit.py",
        [module("mine.loop", SITE), *SUBMITIT, of_main(f"{SITE}/submitit/core/_submit.py")],
        "submitit",
    ),
    "Ray, in a thread": (
        f"{SITE}/ray/_private/workers/default_worker.py",
        [module("project.training"), module("ray.train.thread", SITE), module("threading", STDLIB)],
        "ray",
    ),
    "pytest": (f"{BIN}/pytest", [module("test_it"), module("_pytest.python", SITE), of_main(f"{BIN}/pytest")], "_pytest"),
    "python -m pytest": (
        f"{SITE}/pytest/__main__.py",
        [module("test_it"), module("_pytest.python", SITE), of_main(f"{SITE}/pytest/__main__.py")],
        "pytest",
    ),
    "python -m unittest": (
        f"{STDLIB}/unittest/__main__.py",
        [module("test_it"), module("unittest.case", STDLIB), of_main(f"{STDLIB}/unittest/__main__.py")],
        "unittest",
    ),
    "a server in a thread": (f"{BIN}/serve", [module("project.training"), module("threading", STDLIB)], "serve"),
    "a kernel without a prompt": (f"{SITE}/ipykernel_launcher.py", [module("__main__", "/tmp")], "ipykernel_launcher"),
}


CLICK = (module("click.core", SITE), module("click.decorators", SITE))
COMMANDS = {
    # where the module of the command is, who calls join() in it, and the host
    "installed": (module("mine.cli", SITE), module("mine.loop", SITE), None),
    "installed, the function in its module": (module("mine.cli", SITE), module("mine.cli", SITE), None),
    "in place": (module("mine.cli"), module("mine.loop"), None),
    "in place, single modules": (module("cli"), module("training"), None),
    "of a host": (module("serving.cli", SITE), module("project.training"), "serving"),
    "of a host, for an installed package": (module("serving.cli", SITE), module("mine.loop", SITE), "serving"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command_belongs_to_the_package_that_has_it_whatever_decorates_its_function(case):
    entry, caller, host = COMMANDS[case]
    script = f"{BIN}/train"
    callers = [caller, *CLICK, of_main(script)]
    assert host_of(script, callers, dataclasses.replace(INSTALLED, entry=entry)) == host


def test_the_function_of_a_command_is_found_by_what_is_recorded_of_it(tmp_path):
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[console_scripts]\ntrain = mine_cli:app.run\n")
    (tmp_path / "library.py").write_text(
        # as click's and others' do
        "class App:\n    def __init__(self, function): self.run = lambda: function()\n"
    )
    (tmp_path / "mine_cli.py").write_text(
        "import library\n"
        "from lockstep._joining.startup import host\n"
        "def train():\n    print(host._entry('train'), host._entry('other'))\n"
        "app = library.App(train)\n"
    )
    (tmp_path / "train").write_text("import sys\nfrom mine_cli import app\nsys.exit(app.run())\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, tmp_path / "train"], env=environment, capture_output=True, text=True, timeout=50)
    found = Caller(module="mine_cli", file=str(tmp_path / "mine_cli.py"))
    assert run.stdout == f"{found} None\n", run


@pytest.mark.parametrize("case", CASES)
def test_a_host_is_known_by_where_it_is_installed_and_whom_it_calls(case):
    script, callers, host = CASES[case]
    assert host_of(script, callers, INSTALLED) == host


HOST = """
import runpy, sys
train = runpy.run_path(sys.argv[1])["train"]
for settings in ({}, {"run_dir": "a"}, {"run_dir": "b"}, {"checkpoint_every": "off"}, {"checkpoint_every": "off"}):
    try:
        print("in", train(**settings))
    except Exception as error:
        print(type(error).__name__, "run_dir=" in str(error))
"""
TRAINING = """
import torch, lockstep
def train(**settings):
    with lockstep.join(progress="off", **settings) as team:
        model = torch.nn.Linear(4, 1)
        model, loader = team.prepare(model, [torch.ones(4, 4)] * 3)
        for batch in loader:
            for x in batch.shards:
                team.backward(model(x).square().mean())
        return team.run_dir
"""


@pytest.mark.long
def test_a_training_that_a_host_calls_is_to_be_named_if_it_is_to_be_resumed(tmp_path):
    environment = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "home")}
    ask = [sys.executable, "-c", "import site; print(site.getusersitepackages())"]
    where = subprocess.run(ask, env=environment, capture_output=True, text=True)
    host = Path(where.stdout.strip(), "hosting", "_submit.py")
    host.parent.mkdir(parents=True)
    host.write_text(HOST)
    (tmp_path / "training.py").write_text(TRAINING)
    command = [sys.executable, host, "training.py"]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50)
    told = [line for line in run.stdout.splitlines() if line.startswith(("in ", "ConfigError "))]
    assert told == ["ConfigError True", "in a", "in b", "in runs/run-1", "in runs/run-2"], run


@pytest.mark.parametrize(
    ("file", "runs", "expected"),
    [
        (f"{SITE}/submitit/core/job_environment.py", "submitit", "submitit"),
        (f"{SITE}/lightning/trainer.py", "submitit", None),
        (f"{SITE}/lightning/trainer.py", None, None),
        (SCRIPT, "submitit", None),
    ],
)
def test_a_host_that_handles_a_signal_itself_is_known(monkeypatch, file, runs, expected):
    monkeypatch.setattr(host_module, "host_of_this_process", lambda: runs)
    monkeypatch.setattr(host_module, "_installed", lambda script: INSTALLED)
    assert host_with_handler(signal.SIGUSR2) is None
    made = {}
    exec(compile("def handle(*_): pass", file, "exec"), made)
    before = signal.signal(signal.SIGUSR2, made["handle"])
    try:
        assert host_with_handler(signal.SIGUSR2) == expected
    finally:
        signal.signal(signal.SIGUSR2, before)
