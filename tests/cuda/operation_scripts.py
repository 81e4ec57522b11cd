"""What tests about operations without a deterministic kernel run in processes of their own."""

import torch
from operation_lines import inputs, moved, run

from lockstep._base.nondeterministic_operations import OPERATIONS
from lockstep._world.allowed_operations import AllowedOperations
from lockstep._world.kernels import DeterministicKernels


def try_all(device):
    """For each operation: the kernel in the error of its call; empty: it runs. Whether what to
    write instead gives the CPU's results, up to rounding. And the error of the call where it is
    allowed."""
    found = {}
    for operation in OPERATIONS:
        values = inputs(operation.name)
        expected = [part.detach() for part in flat(run(operation.instead, values))]
        values = moved(values, device)
        kernels = DeterministicKernels()
        try:
            refused = error_of(operation.call, values).partition(" does not have")[0]
            parts = [part.detach().cpu() for part in flat(run(operation.instead, values))]
            allowed = AllowedOperations([operation.name], device.upper())
            error = error_of(operation.call, values)
            allowed.put_back()
        finally:
            kernels.put_back()
        is_close = all(torch.allclose(one, other, 1e-3, 1e-4) for one, other in zip(parts, expected, strict=True))
        found[operation.name] = refused, is_close, error
    return found


def flat(outcome):
    result, gradients = outcome
    return [result, *gradients]


def error_of(line, values):
    try:
        run(line, values)
    except RuntimeError as error:
        return str(error)
    return ""
