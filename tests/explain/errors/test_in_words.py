"""Errors of one process, raised here by the installed torch, or recorded where that takes a GPU."""

from pathlib import Path

import pytest
import torch

from lockstep.tools.explain.errors.words import ROWS, in_words

pytestmark = pytest.mark.timeout(60)


def words_of(act, *args):
    """Of the error that this raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act(*args)
    return in_words(caught.value)


def recorded(text, kind=RuntimeError):
    """Of an error with this text."""

    def fail():
        raise kind(text)

    return words_of(fail)


def named(name):
    """A type of errors as PyTorch has, where it cannot be raised here."""
    return type(name, (RuntimeError,), {})


REMOTE = "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (  # https://github.com/verl-project/verl/issues/161
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with NCCL_DEBUG=WARN for "
            "details), NCCL version 2.20.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10",
            "Ranks 1 and 0 use the same GPU (at PCI address 10)",
        ),
        (  # https://github.com/vllm-project/vllm/issues/14537
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error (run with NCCL_DEBUG=INFO "
            "for details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external library call "
            "failed or device error. \nLast error:\nError while creating shared memory segment /dev/shm/nccl-EoOvZr "
            "(size 7340384)",
            "/dev/shm has ",
        ),
        (  # https://github.com/NVIDIA/nccl/issues/1410
            "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO "
            "for details), NCCL version 2.20.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Cuda failure 1 'invalid argument'",
            "A CUDA call failed inside NCCL",
        ),
        (  # https://github.com/NVIDIA/nccl/issues/1546
            "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14.3\n"
            "ncclInternalError: Internal check failed.\nLast error:\nNet : Connection closed by remote peer user<50260>\n",
            "A connection between two ranks broke",
        ),
        (  # https://github.com/NVIDIA/nccl/issues/2076
            "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
            f"network error, NCCL version 2.21.5\n{REMOTE}\nLast error:\nsocketProgressOpt: Call to recv from "
            "172.0.0.1<33759> failed : Connection reset by peer",
            "A connection between two ranks broke",
        ),
        (  # https://github.com/hiyouga/LlamaFactory/issues/7396
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, "
            "NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.",
            "Rank 0 waited 600 s in allreduce number 1580 for the other ranks",
        ),
    ],
)
def test_the_families_of_nccl(text, said):
    words = recorded(text, named("DistBackendError"))
    assert said in words
    assert "{" not in words


# The text of newer versions around a CUDA error: https://github.com/mrdbourke/pytorch-deep-learning/issues/1290
AROUND = (
    "CUDA error: {}\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html "
    "for more information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)


def test_the_families_of_cuda():
    words = recorded(AROUND.format("device-side assert triggered"), named("AcceleratorError"))
    assert "CUDA_LAUNCH_BLOCKING=1, or on the CPU" in words

    def set_device(device):
        raise named("AcceleratorError")(AROUND.format("invalid device ordinal"))

    assert "asked for GPU 3, and sees 0" in words_of(set_device, 3)


def keep_a_state():
    state = torch.ones(2, requires_grad=True).square()
    for _ in range(2):
        state = state.square()
        state.sum().backward()


def test_a_hidden_state_that_was_kept_over_a_step_is_to_be_detached():
    assert "state = state.detach(); in a lockstep script, keep it with team.per_shard" in words_of(keep_a_state)


def test_an_error_underneath_is_explained():
    def step():
        try:
            keep_a_state()
        except RuntimeError as error:
            raise OSError("training failed") from error

    assert words_of(step).startswith("(The RuntimeError underneath.) The loss depends on")

    def clean_up():
        try:
            step()
        finally:
            raise KeyError("clean-up failed too")

    assert words_of(clean_up).startswith("(The RuntimeError underneath.) The loss depends on")


def test_ctrl_c_and_ends_that_are_meant_are_left_alone():
    for end in (KeyboardInterrupt(), SystemExit(1)):
        end.__context__ = RuntimeError("NCCL error in: x, internal error")
        assert in_words(end) == ""


def test_objects_that_do_anything_when_they_are_looked_at_do_no_harm():
    class Hostile:
        def __getattribute__(self, name):
            raise SystemError(name)

        def __repr__(self):
            raise SystemError

        __eq__ = __hash__ = __len__ = __bool__ = __repr__

    def step():
        self = hostile = Hostile()
        wild = {1: hostile}
        raise RuntimeError("Expected to have finished reduction in the prior iteration", len(wild), type(self))

    assert "the loss of this rank did not depend on some parameters" in words_of(step)

    class MuteError(RuntimeError):
        def __str__(self):
            raise SystemError

    assert in_words(MuteError()) == ""
    cycle = RuntimeError("NCCL error")
    cycle.__cause__ = ValueError()
    cycle.__cause__.__cause__ = cycle
    assert in_words(cycle)


def test_every_family_is_in_the_documentation():
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text()
    assert {row.family for row in ROWS if f"| {row.family} |" not in page} == set()


def test_too_many_open_files_in_whatever_the_script_does():
    for kind, text in ((OSError, "[Errno 24] Too many open files: 'a.png'"), (RuntimeError, "received 0 items of ancdata")):
        assert "ulimit -n" in recorded(text, kind)
