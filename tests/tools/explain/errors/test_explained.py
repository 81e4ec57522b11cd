"""Errors of one process, raised here by the installed torch."""

import types
from pathlib import Path

import pytest
import torch
from torch.distributed import DistBackendError

import lockstep
import lockstep._joining.engine  # as in a run
from lockstep._base.nondeterministic_operations import by_name
from lockstep._tools.explain.errors.explanation import ROWS, explain, explain_error

pytestmark = pytest.mark.timeout(60)


def error_of(act, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        act(*args)
    return caught.value


def words_of(act, *args):
    """The explanation of the error that this raises, as text."""
    return explain_error(error_of(act, *args))


def explained(act, *args):
    """The same in fields."""
    return explain(error_of(act, *args))


def keep_a_state():
    state = torch.ones(2, requires_grad=True).square()
    for _ in range(2):
        state = state.square()
        state.sum().backward()


def test_a_hidden_state_that_was_kept_over_a_step_is_to_be_detached():
    words = words_of(keep_a_state)
    assert "state = state.detach()" in words
    assert "team.per_shard" in words


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda team, loss: team.backward(loss, weigth=2.0), "weight"),
        (lambda team, loss: team.backward(loss, retain_grap=True), "retain_graph"),
        (lambda team, loss: team.evaluate(None, [], metric=[]), "metrics"),
        (lambda team, loss: lockstep.load_weights("none", devise="cpu"), "device"),
    ],
)
def test_a_misspelled_argument_of_a_call_of_lockstep_is_told_with_the_one_that_was_meant(call, meant):
    team = object.__new__(lockstep.Team)
    team._phases = types.SimpleNamespace(backward=lambda loss, weight, reduction, options: loss.backward(**options))
    assert meant in words_of(call, team, torch.ones(1, requires_grad=True).sum())


@pytest.fixture
def deterministic_kernels():
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True)
    yield
    torch.set_deterministic_debug_mode(mode)


@pytest.mark.parametrize(
    ("name", "act"),  # which the CPU refuses, too, or the device ``meta``
    [
        ("put_", lambda: torch.ones(3).put_(torch.tensor([0, 0]), torch.ones(2))),
        ("max_unpool", lambda: torch.nn.MaxUnpool1d(2)(torch.ones(1, 1, 2), torch.zeros(1, 1, 2, dtype=torch.long))),
        ("median", lambda: torch.ones(3, device="meta").median(0)),
        ("histc", lambda: torch.histc(torch.ones(3, device="meta"))),
    ],
)
def test_an_operation_without_a_deterministic_kernel_is_explained_with_what_to_write(deterministic_kernels, name, act):
    found = explained(act)
    assert found.family == "no deterministic kernel"
    assert by_name(name).instead in found.text


def test_an_operation_that_is_in_no_table_is_explained_too():
    error = RuntimeError(
        "new_backward_cuda does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation"
    )
    assert "new_backward_cuda" in explain(error).text


# As PyTorch and NCCL have them.
FULL = """CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free. \
Process 4711 has 30.00 GiB memory in use. Including non-PyTorch memory, this process has 48.00 GiB memory in use. Of the \
allocated memory 40.00 GiB is allocated by PyTorch, and 7.00 GiB is reserved by PyTorch but unallocated."""
NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {} (run with NCCL_DEBUG=INFO for details), \
NCCL version 2.27.5
ncclError: This usually reflects a failure.
Last error:
{}"""


def of_nccl(kind, last):
    return DistBackendError(NCCL.format(kind, last))


@pytest.mark.parametrize(
    ("error", "family", "named"),
    [
        (torch.OutOfMemoryError(FULL), "GPU memory is full", ("4711", "expandable_segments:True", "--strategy fsdp")),
        (RuntimeError("CUDA error: out of memory"), "GPU memory is full", ("torch.utils.checkpoint",)),
        (
            of_nccl("invalid usage", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 53000"),
            "ranks that share a GPU",
            ("--backend gloo",),
        ),
        (
            of_nccl("unhandled system error", "socketStartConnect: Connect to 10.0.0.3<4711> failed : No route to host"),
            "NCCL",
            ("10.0.0.3<4711>", "NCCL_SOCKET_IFNAME"),
        ),
        (
            of_nccl(
                "unhandled system error", "Error while creating shared memory segment /dev/shm/nccl-AbCdEf (size 9637888)"
            ),
            "NCCL",
            ("nccl-AbCdEf", "--shm-size"),
        ),
        (of_nccl("unhandled cuda error", "Cuda failure 'out of memory'"), "NCCL", ("CUDA_LAUNCH_BLOCKING=1",)),
    ],
)
def test_an_error_of_a_gpu_or_of_nccl_is_explained(error, family, named):
    found = explain(error)
    assert found.family == family
    assert [text for text in named if text not in found.text] == []


def test_a_misspelled_argument_of_another_library_is_left_to_its_own_error():
    assert words_of(lambda: torch.ones(1, requires_grad=True).sum().backward(retain_grap=True)) == ""


def test_an_error_underneath_is_explained():
    def step():
        try:
            keep_a_state()
        except RuntimeError as error:
            raise OSError("training failed") from error

    assert explained(step)[::2] == ("a graph used twice", "RuntimeError")

    def clean_up():
        try:
            step()
        finally:
            raise KeyError("clean-up failed too")

    assert explained(clean_up)[::2] == ("a graph used twice", "RuntimeError")
    assert "RuntimeError" in words_of(clean_up)


def test_ctrl_c_and_ends_that_are_meant_are_left_alone():
    for end in (KeyboardInterrupt(), SystemExit(1)):
        end.__context__ = RuntimeError("backward through the graph a second time")
        assert explain_error(end) == ""


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

    assert explained(step).family == "unused parameters"

    class MuteError(RuntimeError):
        def __str__(self):
            raise SystemError

    assert explain_error(MuteError()) == ""
    cycle = RuntimeError("Connection closed by remote peer")
    cycle.__cause__ = ValueError()
    cycle.__cause__.__cause__ = cycle
    assert explain_error(cycle)


def test_every_family_is_in_the_documentation():
    page = (Path(__file__).parents[4] / "docs" / "error-messages.md").read_text()
    assert {row.family for row in ROWS if f"| {row.family} |" not in page} == set()
