"""What cannot work is found before any process is started; the launcher itself stays light."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from codes import raises

from lockstep._base.config import RunConfig
from lockstep._base.errors import ConfigError
from lockstep._launch import gpus
from lockstep._launch.local import check_fit, reserved_port, resolve_nproc
from lockstep._launch.program import find_script
from lockstep._launch.source import Source


@pytest.mark.parametrize(
    ("present", "visible", "expected"),
    [
        (4, None, 4),
        (4, "0,2", 2),
        (4, "", 0),
        (4, "-1", 0),
        (4, "0,7,1", 1),
        (2, "GPU-8932f937,MIG-1", 2),
        (0, "0,1", 0),
        (0, "GPU-8932f937", 0),
    ],
)
def test_visible_gpus_are_counted_as_cuda_counts_them(present, visible, expected):
    assert gpus.num_visible(present, visible) == expected


def test_gpus_are_found_by_their_device_files(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus.num_present(tmp_path) == 2


@pytest.mark.parametrize("count", [0, 3])
def test_the_default_is_a_process_a_gpu_or_one(monkeypatch, count):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: count)
    cores = len(os.sched_getaffinity(0))
    assert resolve_nproc(None) == max(1, count)
    assert resolve_nproc("cpu") == cores
    assert resolve_nproc("auto") == (count or cores)
    assert resolve_nproc("5") == 5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"devices_per_process": 2}, (3, 3, 3)),
        ({"devices_per_process": 4}, (1, 1, 1)),
        ({"strategy": "single"}, (1, 6, 6)),
        ({"strategy": "dp"}, (1, 6, 6)),
        ({"strategy": "ddp"}, (6, 6, 6)),
    ],
)
def test_by_default_a_process_has_as_many_gpus_as_it_drives(monkeypatch, settings, expected):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: 6)
    assert tuple(resolve_nproc(asked, RunConfig(**settings)) for asked in (None, "auto", "gpu")) == expected


def test_more_devices_a_process_than_gpus_leave_no_process(monkeypatch):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: 2)
    with raises(ConfigError, "nproc-gpu-too-few"):
        resolve_nproc("gpu", RunConfig(devices_per_process=3))


@pytest.mark.parametrize(("count", "device"), [(0, "auto"), (2, "cpu")])
def test_data_parallel_in_one_process_without_gpus_is_refused_before_anything_starts(monkeypatch, count, device):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: count)
    with raises(ConfigError, "strategy-needs-gpus"):
        check_fit(RunConfig(strategy="dp", device=device), 1)


def test_more_machines_than_shards_are_refused_before_they_meet():
    check_fit(RunConfig(shards=4), 2, num_others=2)
    with raises(ConfigError, "processes-above-shards"):
        check_fit(RunConfig(shards=3), 2, num_others=2)


@pytest.mark.parametrize("asked", ["0", "two"])
def test_a_number_of_processes_that_cannot_be_meant_is_refused(asked):
    with raises(ConfigError, "nproc-invalid"):
        resolve_nproc(asked)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"strategy": "single"}, "strategy-of-one-process"),
        ({"strategy": "dp"}, "strategy-of-one-process"),
        ({"shards": 3}, "processes-above-shards"),
        ({"device": "cuda"}, "gpus-too-few"),
        ({"backend": "nccl"}, "gpus-too-few"),
        ({"device": "cuda", "devices_per_process": 3}, "gpus-too-few"),
    ],
)
def test_settings_that_so_many_processes_cannot_have_are_refused(monkeypatch, settings, code):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: 2)
    with raises(ConfigError, code):
        check_fit(RunConfig(**settings), 4)


def test_processes_may_share_gpus_over_gloo_if_asked_for(monkeypatch):
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: 1)
    check_fit(RunConfig(device="cuda", backend="gloo"), 2)
    monkeypatch.setattr(gpus, "num_gpus", lambda environ: 0)
    with raises(ConfigError, "gpus-too-few"):
        check_fit(RunConfig(device="cuda", backend="gloo"), 2)


def test_scripts_that_cannot_run_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('a launcher must not import this')")
    (tmp_path / "package" / "train.py").write_text("")
    for target, is_module, words in (
        ("nope.py", False, "nope.py: no such script"),
        ("", False, "the script's name is empty"),
        ("train", False, "Did you mean train.py?"),
        ("package.train", False, "lockstep run -m package.train"),
        (str(tmp_path), False, "is a directory"),
        ("", True, "the script's name is empty"),
    ):
        with pytest.raises(ConfigError) as caught:
            find_script(target, is_module=is_module)
        assert words in str(caught.value)
    assert find_script("package.train", is_module=True) == Path("package/train.py")
    assert find_script("json.tool", is_module=True) is None, "its worker finds it"


@pytest.mark.parametrize(
    ("source", "words"),
    [(b"def f(:\n  pass\n", "line 1: invalid syntax"), (b"return 1\n", "'return' outside"), (b"\0", "null bytes")],
)
def test_a_syntax_error_is_found_before_any_worker_starts(tmp_path, source, words):
    path = tmp_path / "script.py"
    path.write_bytes(source)
    with pytest.raises(ConfigError, match=words):
        Source.read(path)


def test_a_reserved_port_can_be_listened_on_and_is_given_to_nobody_else():
    with reserved_port() as port, socket.socket(socket.AF_INET6) as store:
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        store.bind(("::", port))  # as torch's TCPStore does it
        store.listen()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))


@pytest.mark.long
def test_the_launcher_never_imports_torch(tmp_path):
    (tmp_path / "script.py").write_text("import torch")
    source = (
        "import sys; from lockstep._cli.main import main\n"
        "try: main(['run', 'script.py'])\n"
        "finally: print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False False\n", "")
