"""The checks of the series, rehearsed as a whole: on a card no line is run for the first time but
those that ask CUDA."""

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu.checks import layers, operations

ROOT = Path(__file__).parents[2]


def test_an_operation_that_gives_other_bits_for_the_same_is_named():
    values, seeds = torch.ones(4), iter([1, 2])

    def run():
        torch.manual_seed(next(seeds))
        # what follows differs, too: because of what it is given
        return (torch.rand(4) + values) * 2 + torch.arange(4)

    assert operations.differing(run) == {"aten.rand.default": 1}


def test_a_layer_that_raises_or_gives_other_bits_is_told_from_others():
    numbers = iter(range(100))

    def refuse():
        if torch.are_deterministic_algorithms_enabled():
            raise RuntimeError("no deterministic kernel\nand more")
        return {"loss": torch.ones(2)}

    def differ():
        return {"loss": torch.tensor(float(next(numbers)))}

    assert layers.examine(refuse, deterministic=False) == (layers.SAME, "")
    assert layers.examine(refuse, deterministic=True) == (layers.RAISES, "no deterministic kernel")
    assert layers.examine(differ, deterministic=True) == (layers.DIFFERS, "")
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(1500)
def test_the_whole_series_can_be_rehearsed(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools" / "gpu"),
        "--device",
        "cpu",
        "--limit",
        "900",
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2900)
    assert done.returncode == 0, done.stdout
    verdicts = {one["name"]: one["verdict"] for one in json.loads((tmp_path / "out" / "report.json").read_text())["stages"]}
    assert verdicts.pop("hosts") == "not run"
    assert set(verdicts.values()) == {"passed", "rehearsed"}
    assert len(verdicts) == 18


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(300)
def test_the_stage_on_several_machines_can_be_rehearsed_on_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = [sys.executable, str(ROOT / "tools" / "gpu"), "--device", "cpu", "--stage", "hosts", *where]
    out = [tmp_path / f"out-{rank}" for rank in range(2)]
    nodes = [
        subprocess.Popen([*command, "--node-rank", str(rank), "--out", str(out[rank])], stdout=subprocess.DEVNULL)
        for rank in range(2)
    ]
    try:
        assert [node.wait(timeout=280) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
        shutil.rmtree(ROOT / "build" / "gpu" / f"hosts-127.0.0.1-{port}", ignore_errors=True)  # which both had to see
    first, second = (json.loads((path / "report.json").read_text())["stages"][1]["found"] for path in out)
    assert first["all GPUs"]["digests"] == second["all GPUs"]["digests"] == first["this machine alone"]["digests"]
    assert first["all GPUs"]["bytes sent a step"]["lo"] > first["all GPUs"]["bytes of the gradients"]
