"""The lines of docs/how-to/clouds.md, each run in two processes with the variables that its
platform sets, to the digest of one process."""

import re
import subprocess

import pytest
from engine_helpers import ROOT, SECRET, TRAIN, digest, free_port, words_of

PAGE = (ROOT / "docs" / "how-to" / "clouds.md").read_text()
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith(("| platform", "|-"))
]
COMMANDS = {platform: command.strip("`").replace(r"\|", "|") for platform, _, command in ROWS}


def by_node(index, port):
    """Variables that describe machines by the names of the PyTorch plugin of Volcano."""
    return {"MASTER_ADDR": "train-master-0", "MASTER_PORT": port, "RANK": str(index), "WORLD_SIZE": "2"}


def by_torchrun(index, port):
    """What torchrun sets in the only process of each machine."""
    found = {**by_node(index, port), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(index)}
    return {**found, "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "train", "TORCHELASTIC_RESTART_COUNT": "0"}


VARIABLES = {
    "SkyPilot": lambda index, port: {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": str(index),
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "1",
    },
    "dstack": lambda index, port: {
        "DSTACK_NODES_NUM": "2",
        "DSTACK_NODE_RANK": str(index),
        "DSTACK_MASTER_NODE_IP": "127.0.0.1",
        "DSTACK_GPUS_PER_NODE": "1",
    },
    "Volcano (plugin `pytorch`)": lambda index, port: {
        **by_node(index, port),
        "VC_TASK_INDEX": "0",
        "VC_WORKER_NUM": "1",
        "VC_WORKER_HOSTS": "train-worker-0.train",
    },
    "Vertex AI, Alibaba PAI DLC": lambda index, port: {**by_node(index, port), "CLUSTER_SPEC": "{}"},
    "Azure ML (`PyTorchDistribution`)": lambda index, port: {
        **by_node(index, port),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(index),
    },
    "TorchX (`dist.ddp`)": by_torchrun,
    "SageMaker (`torch_distributed`)": by_torchrun,
}


AS_ANOTHER = {
    "Vertex AI, Alibaba PAI DLC": "Volcano (plugin `pytorch`)",
    "SageMaker (`torch_distributed`)": "TorchX (`dist.ddp`)",
}
"""Platforms whose line is that of another, with the same variables: one of the two is run."""


def words_on(command, env):
    """The words of the command as a shell with these variables makes them."""
    shell = ["bash", "-c", f"printf '%s\\0' {command}"]
    done = subprocess.run(shell, env={**env, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def test_every_row_that_shows_a_command_is_tested():
    assert VARIABLES.keys() == {platform for platform, command in COMMANDS.items() if not command.startswith("[")}


def test_platforms_that_are_not_run_are_as_another():
    for platform, other in AS_ANOTHER.items():
        assert VARIABLES[platform](1, "29500").items() >= by_node(1, "29500").items()
        assert COMMANDS[platform] == COMMANDS[other] or VARIABLES[platform] is VARIABLES[other]


@pytest.mark.parametrize("platform", VARIABLES)
def test_a_row_names_the_variables_that_its_command_uses(platform):
    used = set(re.findall(r"\$([A-Z_]+)", COMMANDS[platform]))
    assert used <= VARIABLES[platform](0, "29500").keys()


@pytest.mark.long
@pytest.mark.timeout(100)
@pytest.mark.parametrize("platform", sorted(VARIABLES.keys() - AS_ANOTHER.keys()))
def test_the_line_of_a_platform_trains_to_the_digest_of_one_process(platform, pods, digest_alone, tmp_path):
    run_dir, port = tmp_path / "run", str(free_port())
    (tmp_path / "hurry").touch()
    (tmp_path / "train.py").write_text(TRAIN.replace("shards=8", f"shards=8, run_dir={str(run_dir)!r}"))
    started = []
    for index in range(2):
        env = VARIABLES[platform](index, port)
        if VARIABLES[platform] is by_torchrun:  # the command starts torchrun, and torchrun this
            words, is_python = ["train.py"], True
        else:
            words, is_python = words_of(words_on(COMMANDS[platform], env))
        assert words[-1] == "train.py"
        if "--nnodes" in words and "--master-port" not in words:  # on one machine, not at 29500
            words[:0] = ["--master-port", port]
        words[-1] = str(tmp_path / "train.py")
        started.append(pods.start(index, words, {**env, "LOCKSTEP_SECRET": SECRET}, is_python=is_python))
    assert [pod.wait() for pod in started] == [0, 0], "".join(pod.output for pod in started)
    assert "world size 2" in started[0].output
    assert digest(run_dir) == digest_alone
