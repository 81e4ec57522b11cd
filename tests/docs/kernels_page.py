"""Writes docs/deterministic-kernels.md from the table of operations in lockstep: python
tests/docs/kernels_page.py."""

from pathlib import Path

from lockstep._base.nondeterministic_operations import OPERATIONS

PAGE = Path(__file__).parents[2] / "docs" / "deterministic-kernels.md"
HEAD = """\
# Operations without a deterministic kernel

<!-- Written by tests/docs/kernels_page.py: change that, and run it. -->

This page lists the operations that raise an error on a GPU, and what to write instead. You need it
when an error contains `does not have a deterministic implementation`, or when a run or [`lockstep
check`](check.md) names a layer.

On a GPU, some kernels add in an order that depends on timing, so that two equal runs differ.
lockstep therefore [turns on deterministic kernels](gpu.md#before-a-run), and PyTorch has none for
the operations below. PyTorch's error blames your script for this setting, and proposes
`warn_only=True`. Do not set that: other operations, such as cuDNN's attention, then use kernels
that are not deterministic either.

Look for these operations before the first run:

```
lockstep check train.py
```

It finds calls and layers in the script and the modules next to it. A run on a GPU also names the
layers of each prepared model, including models of libraries. Neither can see what depends on shapes
and types of tensors (`nll_loss2d`, `cumsum`, `put_`).

## What to write instead

`F` is `torch.nn.functional`. The results are equal up to rounding, as are the gradients. With
`.cpu()`, the operation runs on the CPU, whose kernels are deterministic: the host then waits for
the GPU in every step. With the note "in the call", the call raises the error; otherwise only its
backward pass does.
"""
FOOT = """
The list is that of `torch.use_deterministic_algorithms.__doc__` in PyTorch 2.13, which a test
compares, without `bilinear` and `trilinear` (`F.interpolate` has deterministic ways for them) and
`resize_` of quantized tensors. The substitutes were tested on the CPU, and that they avoid these
operations on the device `meta`. **They have not run on a GPU**; on a machine with one, [`make
gpu`](gpu.md#test-your-gpu) runs all of them.

## Allow an operation

If no substitute is suitable, allow the operation by its name:

```
lockstep run --nondeterministic ctc_loss train.py
```

`join(nondeterministic="ctc_loss,cumsum")` is the same. Deterministic kernels are then off while such
an operation runs, in forward and backward passes, and on for all others. **Results are not
bit-identical** between two equal runs or between numbers of processes: the run and its event log
name the operations, and warn. The run keeps them when it resumes; other operations are an error.
They need one CUDA device per process, since PyTorch has one setting for all devices of a process.
This was tested with operations that PyTorch refuses on the CPU, too, and has not run on a GPU.

`--allow numerics` turns off deterministic kernels for the whole run instead.
"""


def page():
    """The text of the page."""
    return f"{HEAD}\n{table()}\n{FOOT}"


def table():
    lines = ["| operation | instead of | write | note |", "|---|---|---|---|"]
    for row in sorted(OPERATIONS, key=lambda row: row.name):
        notes = [] if row.in_backward else ["in the call"]
        notes += [row.note] if row.note else []
        lines.append(
            f"| `{row.name}` | `{row.call}` | `{row.instead}` | {'. '.join(n[:1].upper() + n[1:] for n in notes)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
