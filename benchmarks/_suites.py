"""Tests that other projects wrote for torchrun's processes, and the command of each: data only."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Suite:
    """The tests of one project.

    Args:
        name: of the project.
        package: its distribution; where it is missing, so are its tests.
        where: their package; with ``repository``, their directory in it.
        repository: on GitHub, if they are not in the wheel: a checkout of the tag of the installed
            version is needed.
        pytest: whether pytest runs them.
    """

    name: str
    package: str
    where: str
    repository: str = ""
    pytest: bool = False

    def wanted(self) -> str:
        """Which checkout is needed."""
        return f"{self.repository} at v{importlib.metadata.version(self.package).partition('+')[0]}"

    def target(self, script: str, sources: Path | None) -> list[str] | None:
        """Returns the command for a launcher; None: the checkout is missing."""
        if self.pytest:
            return ["-m", "pytest", "-v", "-p", "no:cacheprovider", "--pyargs", f"{self.where}.{script}"]
        if not self.repository:
            return ["-m", f"{self.where}.{script}"]
        path = None if sources is None else sources / self.repository.rpartition("/")[2] / self.where / f"{script}.py"
        return None if path is None or not path.is_file() else [str(path.resolve())]


@dataclass(frozen=True)
class Script:
    """One row.

    Args:
        suite: whose.
        name: of the script, without ``.py``.
        args: of the script.
        nproc: how many processes; one for a script that starts its processes itself.
        wrote: what it writes that must be the same under both launchers, byte for byte.
        gpus: how many GPUs it cannot do without.
        packages: the packages that it needs in addition to the suite's.
        model: of the Hub, for which ``workers/tiny_model.py`` makes a stand-in.
        environ: environment variables with its task.
    """

    suite: Suite
    name: str
    args: tuple[str, ...] = ()
    nproc: int = 2
    wrote: str = ""
    gpus: int = 0
    packages: tuple[str, ...] = ()
    model: str = ""
    environ: tuple[tuple[str, str], ...] = ()

    def lacks(self, gpus: int) -> str:
        """What is missing here, with that many GPUs; empty: nothing that is known before it
        runs."""
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if gpus < self.gpus:
            return f"{self.gpus} GPUs" if self.gpus > 1 else "a GPU"
        return f"the package {missing[0]}" if missing else ""


ACCELERATE = Suite("accelerate", "accelerate", "accelerate.test_utils.scripts")
TRANSFORMERS = Suite("transformers", "transformers", "tests/trainer/distributed/scripts", "huggingface/transformers")
PYTORCH = Suite("PyTorch", "torch", "test/distributed/algorithms", "pytorch/pytorch")
TORCHFT = Suite("torchft", "torchft-nightly", "torchft", pytest=True)
OUT = ("--output_dir", "out")
LOSSES = ("--logging_steps", "1", "--loss_output_file", "out/losses.json")
DATASETS = ("datasets", "evaluate")
QWEN = "trl-internal-testing/tiny-Qwen2ForCausalLM-2.5"

SCRIPTS = (
    Script(ACCELERATE, "test_cli", nproc=1),
    Script(ACCELERATE, "test_ops"),
    Script(ACCELERATE, "test_sync"),
    Script(ACCELERATE, "test_script"),
    Script(ACCELERATE, "test_distributed_data_loop"),
    Script(ACCELERATE, "test_ddp_comm_hook"),
    Script(ACCELERATE, "test_merge_weights"),
    Script(ACCELERATE, "test_notebook", nproc=1, environ=(("ACCELERATE_NUM_PROCESSES", "2"),)),
    Script(ACCELERATE, "external_deps.test_checkpointing", packages=DATASETS),
    Script(ACCELERATE, "external_deps.test_metrics", packages=DATASETS),
    Script(ACCELERATE, "external_deps.test_performance", packages=DATASETS),
    Script(ACCELERATE, "external_deps.test_peak_memory_usage", gpus=1),
    Script(ACCELERATE, "external_deps.test_pippy", gpus=2),
    Script(ACCELERATE, "external_deps.test_zero3_integration", packages=("deepspeed",)),
    Script(ACCELERATE, "external_deps.test_ds_multiple_model", packages=("deepspeed",)),
    Script(ACCELERATE, "external_deps.test_ds_alst_ulysses_sp", packages=("deepspeed",)),
    Script(TRANSFORMERS, "eval_ddp", OUT),
    Script(TRANSFORMERS, "worker_seed", OUT),
    Script(TRANSFORMERS, "dispatch_batches", OUT),
    Script(TRANSFORMERS, "training_parity", OUT, wrote="out/losses.json"),
    Script(TRANSFORMERS, "moe_aux_loss", OUT, wrote="out/result.pt"),
    Script(TRANSFORMERS, "batch_rebalance_ddp", OUT, wrote="out/result.json"),
    Script(TRANSFORMERS, "context_parallel_predict", (*OUT, "--expected_cp_size", "1", "--use_cpu")),
    Script(TRANSFORMERS, "torchrun_env_check", OUT, model=QWEN),
    Script(TRANSFORMERS, "train", (*OUT, *LOSSES), wrote="out/losses.json", model=QWEN),
    Script(TRANSFORMERS, "loss_averaging", OUT, packages=("datasets",)),
    Script(TRANSFORMERS, "eval", OUT, gpus=2),
    Script(TRANSFORMERS, "fsdp_generate", ("--fsdp2",), gpus=2),
    Script(TRANSFORMERS, "context_parallel", OUT, gpus=2),
    Script(TRANSFORMERS, "expert_parallel_train", ("--layout", "masked", *OUT), gpus=4),
    Script(PYTORCH, "test_join", nproc=1),
    Script(PYTORCH, "ddp_comm_hooks/test_ddp_hooks", nproc=1, gpus=2),
    Script(TORCHFT, "manager_integ_test", nproc=1),
    Script(TORCHFT, "local_sgd_integ_test", nproc=1),
)
