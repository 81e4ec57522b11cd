"""Errors of one process, raised here by the installed torch, or recorded where that takes a GPU."""

from pathlib import Path

import pytest
import torch
from torch import nn

from lockstep.tools.explain.errors.words import ROWS, in_words

pytestmark = pytest.mark.timeout(60)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 5)
        self.fc2 = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc2(self.fc1(x))


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


def train(model, images):
    model(images)


def test_a_model_on_another_device_than_its_input():
    words = words_of(train, Net().to("meta"), torch.randn(2, 4))
    assert words.startswith(
        "Layer 'fc1' (Linear) has its parameters (weight [5, 4] and bias [5]) on meta, and computes with input [2, 4] on cpu."
    )
    assert "to_empty" in words


def test_an_input_on_another_device_than_the_model():
    words = words_of(train, nn.Sequential(Net()), torch.randn(2, 4, device="meta"))
    assert words.startswith("Layer '0.fc1' (Linear) has its parameters (weight [5, 4] and bias [5]) on cpu")
    assert "Move what the model is given there, .to('cpu')" in words


def test_a_layer_that_was_moved_in_part():
    model = Net()
    model.fc2.bias = nn.Parameter(torch.zeros(3, device="meta"))
    words = words_of(train, model, torch.randn(2, 4))
    assert words.startswith("Layer 'fc2' (Linear) is on several devices: weight [3, 5] on cpu; bias [3] on meta.")


def test_a_tensor_that_a_layer_keeps_without_registering_it():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.mask = torch.ones(4, device="meta")

        def forward(self, x):
            return x * self.scale * self.mask

    words = words_of(train, nn.Sequential(Masked()), torch.randn(2, 4))
    assert "Layer '0' (Masked) has its parameters (scale [4]) on cpu, and computes with self.mask [4] on meta." in words
    assert "register_buffer" in words


def test_a_loss_without_a_gradient():
    def step(model):
        with torch.no_grad():
            loss = model(torch.randn(2, 4)).sum()
        loss.backward()

    words = words_of(step, Net())
    assert words.startswith("backward() was called on loss, which depends on no parameter that learns (4 of Net could")
    frozen = words_of(step, Net().requires_grad_(False))
    assert "all parameters of Net have requires_grad=False" in frozen


def test_memory_of_the_machine_with_what_took_it():
    def step():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        return torch.empty(10**15)

    words = words_of(step)
    assert words.startswith("The machine has no memory for 3.55 PiB more, asked for at once: ")
    for part in (
        "172 bytes  parameters and buffers",
        "172 bytes  gradients",
        "172 bytes  state of SGD",
        "other processes, and",
    ):
        assert part in words


# https://github.com/pytorch/pytorch/issues/16417 (comment of 2024-03-13), with other figures.
FULL_GPU = (
    "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is free. "
    "{other}Including non-PyTorch memory, this process has {mine} memory in use. Of the allocated memory {allocated} is "
    "allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
    "Management (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


@pytest.mark.parametrize(
    ("figures", "said", "remedy"),
    [
        (
            {"other": "", "mine": "23.60 GiB", "allocated": "22.90 GiB", "unused": "194.87 MiB"},
            [
                "22.90 GiB  activations and other tensors",
                "194.87 MiB  reserved",
                "521.93 MiB  CUDA itself",
                "40.14 MiB  other proc",
            ],
            "Fewer samples at a time help most",
        ),
        (
            {
                "other": "Process 4242 has 20.00 GiB memory in use. ",
                "mine": "3.60 GiB",
                "allocated": "3.00 GiB",
                "unused": "0 bytes",
            },
            ["20.00 GiB  other processes (4242)"],
            "end them",
        ),
        (
            {"other": "", "mine": "23.60 GiB", "allocated": "9.00 GiB", "unused": "14.00 GiB"},
            ["14.00 GiB  reserved by PyTorch and not in use"],
            "expandable_segments",
        ),
    ],
)
def test_memory_of_a_gpu_with_what_took_it(figures, said, remedy):
    words = recorded(FULL_GPU.format(**figures), torch.OutOfMemoryError)
    assert words.startswith("GPU 0 is full: 22.00 MiB more were asked for, and 11.06 MiB of 23.65 GiB are free.")
    assert [part for part in said if part not in words] == []
    assert remedy in words.splitlines()[-1]


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
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(100, 4)

        def forward(self, x):
            raise named("AcceleratorError")(AROUND.format("device-side assert triggered"))

    assert "looks up indices in token (100 rows)" in words_of(train, Text(), None)

    def set_device(device):
        raise named("AcceleratorError")(AROUND.format("invalid device ordinal"))

    assert "asked for GPU 3, and sees 0" in words_of(set_device, 3)


# The older wording: https://github.com/haotian-liu/LLaVA/issues/1081
# The newer one: https://github.com/ClownsharkBatwing/RES4LYF/pull/223
@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0! (when checking "
        "argument for argument mat1 in method wrapper_CUDA_addmm)",
        "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other tensors on cuda:0 (when "
        "checking argument in method wrapper_CUDA_addmm)",
    ],
)
def test_the_texts_of_gpus_about_wrong_devices(text):
    class Moved(nn.Linear):
        def forward(self, input):
            raise RuntimeError(text)

    words = words_of(train, nn.Sequential(Moved(4, 5, device="meta")), torch.randn(2, 4))
    assert words.startswith("Layer '0' (Moved) has its parameters (weight [5, 4] and bias [5]) on meta")


def test_a_hidden_state_that_was_kept_over_a_step_is_to_be_detached():
    def step():
        state = torch.ones(2, requires_grad=True).square()
        for _ in range(2):
            state = state.square()
            state.sum().backward()

    assert "state = state.detach(); in a lockstep script, keep it with team.per_shard" in words_of(step)


def test_an_error_underneath_is_explained():
    def step():
        try:
            Net().requires_grad_(False)(torch.randn(2, 4)).sum().backward()
        except RuntimeError as error:
            raise OSError("training failed") from error

    assert words_of(step).startswith("(The RuntimeError underneath.) backward() was called on")

    def clean_up():
        try:
            step()
        finally:
            raise KeyError("clean-up failed too")

    assert words_of(clean_up).startswith("(The RuntimeError underneath.) backward() was called on")


def test_an_error_in_a_group_is_explained():
    nested = ExceptionGroup(
        "several", [ValueError("x"), ExceptionGroup("more", [RuntimeError("NCCL error in: x, internal error")])]
    )
    assert in_words(nested).startswith("(The RuntimeError underneath.) NCCL failed")


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

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.lazy = nn.LazyLinear(3)

    def step():
        hostile, lazy, wild = Hostile(), Lazy(), {1: Hostile()}
        self = hostile
        return torch.empty(10**15), lazy, wild, self

    assert words_of(step).startswith("The machine has no memory")

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
