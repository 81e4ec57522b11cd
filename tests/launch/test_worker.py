"""A worker looks to the script like a process that ``python`` or torchrun has just started."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(40), pytest.mark.quick]
CORES = len(os.sched_getaffinity(0))


def test_a_module_runs_as_python_m_would_run_it(run_warm, tmp_path):
    ended = run_warm("import sys; print(sys.path[0], __spec__.name, sys.argv[0] == __file__)", nproc=1, is_module=True)
    assert ended.out == f"{tmp_path} script True\n"


def test_workers_have_the_environment_of_torchrun_and_of_the_caller_only(run_warm, monkeypatch):
    monkeypatch.setenv("MINE", "yes")  # set after the server was started
    monkeypatch.delenv("HOME", raising=False)  # gone since
    ended = run_warm(
        """
        import os
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MINE HOME LOCKSTEP_SETTINGS".split()
        print(*(os.environ.get(name) for name in names))
        """,
        settings={"seed": 7},
    )
    assert ended.lines == [f'{rank} {rank} 2 2 0 127.0.0.1 yes None {{"seed": 7}}' for rank in (0, 1)]


def test_restarts_keep_the_name_of_their_launch_and_no_other_launch_has_it(run_warm, monkeypatch):
    # as where this launcher is itself the worker of another
    monkeypatch.setenv("LOCKSTEP_CALL", "1")
    source = """
        import os, sys
        print(os.environ["LOCKSTEP_LAUNCH"], "LOCKSTEP_CALL" in os.environ)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
        """
    first, second = (run_warm(source, nproc=1, max_restarts=1).lines for _ in range(2))
    assert len(first) == len(second) == 2
    assert len({*first}) == len({*second}) == 1
    assert first != second
    assert first[0].endswith(" False")


THREADS = """
import numpy, torch
from threadpoolctl import threadpool_info
print(torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"))
"""


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("asked", [None, "3"])
def test_cores_are_divided_unless_the_user_said_otherwise(run_warm, monkeypatch, nproc, asked):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, CORES // nproc)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    lines = [[int(number) for number in line.split()] for line in run_warm(THREADS, nproc=nproc).lines]
    assert [blas for _, *blas in lines] == [[int(asked or share)]] * nproc
    if nproc > 1:  # a lone process has what torch takes by itself
        assert [torch for torch, *_ in lines] == [int(asked or share)] * nproc


@pytest.mark.long
def test_modules_beside_the_script_win_over_those_that_the_server_has_imported(run_warm, tmp_path):
    for name in ("code", "statistics", "profile", "tqdm", "os"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n_Utils = run = runctx = mean = object\n")
    (tmp_path / "token").mkdir()  # a folder of data, which no module is found in
    source = """
        import code, os, profile, statistics, token, tqdm
        import cProfile, torch, torch.utils.data
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2)), num_workers=1)
        print(*(hasattr(module, "MINE") for module in (code, profile, statistics, tqdm, os, token)), len(list(loader)))
        """
    (tmp_path / "script.py").write_text(textwrap.dedent(source))
    assert run_warm(source, nproc=1).out == "True True True True False False 2\n"
    python = subprocess.run([sys.executable, "-Wignore", "script.py"], stdout=subprocess.PIPE, check=True, text=True)
    assert python.stdout == "True True True True False False 2\n"


BESIDE = ("copy", "concurrent.futures.thread", "email.charset", "http.client")


def test_a_package_beside_the_script_is_found_with_its_own_submodules_alone(run_warm, tmp_path):
    missing = run_warm(f"import sys\nprint({set(BESIDE)} - sys.modules.keys())", nproc=1).out
    assert missing == "set()\n", "what the server has not imported shows nothing"
    for name in BESIDE:
        path = tmp_path.joinpath(*name.split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        for each in (*(path.parents[: name.count(".")]), path):
            (each / "__init__.py" if each.is_dir() else each.with_suffix(".py")).write_text("MINE = True\n")
    source = f"""
        import copyreg, importlib, pickle

        def is_mine(name):
            try:
                return hasattr(importlib.import_module(name), "MINE")
            except ModuleNotFoundError:
                return None

        names = {BESIDE}
        print(*(is_mine(".".join(name.split(".")[: depth + 1])) for name in names for depth in range(name.count(".") + 1)))
        print(*map(is_mine, ("concurrent.futures.process", "email.errors", "json.decoder")))
        print(pickle.dispatch_table is copyreg.dispatch_table)
        """
    ended = run_warm(source, nproc=1)
    assert ended.out == f"{' '.join(['True'] * 8)}\nNone None False\nTrue\n"
    python = subprocess.run([sys.executable, "-Wignore", "script.py"], stdout=subprocess.PIPE, check=True, text=True)
    assert python.stdout == ended.out


def test_ranks_that_do_not_seed_draw_different_numbers(run_warm):
    ended = run_warm("import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(()).item())")
    first, second = (line.split() for line in ended.lines)
    assert len(first) == 3
    assert not {*first} & {*second}


def test_classes_of_main_reach_loader_workers(run_warm):
    ended = run_warm(
        """
        import torch

        class Squares(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return i * i

        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
            print(torch.cat(list(loader)).tolist())
        """
    )
    assert ended.lines == ["[0, 1, 4, 9, 16, 25, 36, 49]"] * 2


def test_exit_handlers_run_and_know_of_the_exception(run_warm):
    source = """
        import atexit, sys, threading, time
        atexit.register(lambda: print("handler saw", repr(getattr(sys, "last_value", None))))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread done"))).start()
        if sys.argv[1:]:
            raise KeyError("x")
        """
    assert run_warm(source, nproc=1).out == "thread done\nhandler saw None\n"
    assert run_warm(source, "fail", nproc=1).out == "thread done\nhandler saw KeyError('x')\n"


@pytest.mark.parametrize(("asked", "level"), [("INFO", "INFO"), ("", "OFF")])
def test_the_debug_level_is_what_it_would_be_if_torch_were_imported_by_the_script(run_warm, monkeypatch, asked, level):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", asked) if asked else monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", False)
    assert run_warm("import torch.distributed as dist\nprint(dist.get_debug_level().name)", nproc=1).out == f"{level}\n"


def test_what_a_script_leaves_open_is_ended_as_under_python(run_warm, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    source = """
        import logging.handlers, multiprocessing, sys, tempfile, time, weakref
        from multiprocessing.util import get_temp_dir

        class Logger: pass

        def upload():
            time.sleep(0.3)
            print("uploaded")

        if __name__ == "__main__":
            logger = Logger()
            weakref.finalize(logger, print, "finalized")
            to_stdout = logging.StreamHandler(sys.stdout)
            logging.getLogger().addHandler(logging.handlers.MemoryHandler(100, target=to_stdout))
            logging.warning("logged")
            directory = tempfile.TemporaryDirectory()
            get_temp_dir()  # queues and managers have their sockets there
            multiprocessing.get_context("fork").Process(target=upload).start()  # and nobody joins it
        """
    lines = run_warm(source, nproc=1).lines
    assert not list((tmp_path / "temporary").iterdir())
    python = subprocess.run([sys.executable, "-Wignore", "script.py"], stdout=subprocess.PIPE, check=True, text=True)
    assert lines == sorted(python.stdout.splitlines()) == ["finalized", "logged", "uploaded"]


def test_the_server_has_one_thread_and_has_imported_torch(server):
    process = Path(f"/proc/{server.pid}")
    assert len(list((process / "task").iterdir())) == 1
    assert "libtorch" in (process / "maps").read_text()


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import sys, torch; print('torch._dynamo' in sys.modules); torch.optim.SGD", "True"),
        ("import sys; print('torch._dynamo' in sys.modules)", "False"),
    ],
)
def test_what_every_optimizer_needs_is_imported_once_for_all_workers_of_a_script_that_has_one(start_cold, source, expected):
    out, err = start_cold(source, "--nproc-per-node", "2").communicate(timeout=100)
    assert out.split() == [expected] * 2, err
