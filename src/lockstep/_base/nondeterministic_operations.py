"""The operations for which PyTorch has no deterministic kernel on a GPU. With
``torch.use_deterministic_algorithms(True)``, which lockstep sets there, each raises an error.

The list is that of ``torch.use_deterministic_algorithms.__doc__``, without bilinear and trilinear
interpolation, for which ``interpolate`` has another way, and without quantized tensors. This module
does not import torch, since it is read by tools that start quickly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """A public function or layer of PyTorch's that leads to an operation."""

    name: str
    """Its full name, such as ``torch.nn.Upsample``."""
    argument: str = ""
    """The argument on which it depends, and the layer's attribute; empty: it always does."""
    position: int = -1
    """The argument's place in a call without names."""
    only: tuple[Any, ...] = ()
    """The argument's values that lead to it; empty: all that a call passes, except ``unless``."""
    unless: tuple[Any, ...] = ()

    def leads(self, given: Mapping[str, Any]) -> bool:
        """Whether it leads to the operation with these arguments, or attributes. What is not given
        has PyTorch's default, which never does."""
        if not self.argument:
            return True
        if self.argument not in given:
            return False
        value = given[self.argument]
        value = tuple(value) if isinstance(value, list) else value
        return value not in self.unless and (not self.only or value in self.only)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation, what leads to it, and what to write instead."""

    name: str
    """The name by which lockstep's messages and pages know it."""
    error: str
    """A regular expression of the kernel's name with which PyTorch's error begins."""
    kernels: tuple[str, ...]
    """The operators, as ``torch.ops.aten`` has them, whose kernels for a GPU raise."""
    in_backward: bool
    """Whether the backward pass raises, rather than the call."""
    call: str
    """The call, as a line of code."""
    instead: str
    """An expression with the same result (and gradients) that has deterministic kernels."""
    note: str = ""
    """The limits of that expression, or another way."""
    ways: tuple[Way, ...] = field(default=())
    """What leads to it, as far as a call or a layer alone shows that."""

    def advice(self) -> str:
        """What to write instead, as text for messages."""
        return f"instead of {self.call}, write {self.instead}" + (f" ({self.note})" if self.note else "")


_NN = "torch.nn."
_F = "torch.nn.functional."
_DIVIDES = "if the sizes of the output divide the sizes of x; otherwise on the CPU"
_OUT = ("", ".grad_input")
_ONES = (1, (1, 1), (1, 1, 1))


def _adaptive(name: str, layers: tuple[str, ...], unless: tuple[Any, ...]) -> tuple[Way, ...]:
    """The ways by adaptive pooling, whose only setting is the size of its result."""
    called = tuple(Way(f"{_F}{name}{n}d", "output_size", 1, unless=unless) for n in layers)
    kind = "".join(part.capitalize() for part in name.removesuffix("_pool").split("_"))
    return *called, *(Way(f"{_NN}{kind}Pool{n}d", "output_size", 0, unless=unless) for n in layers)


OPERATIONS = (
    Operation(
        name="nll_loss2d",
        error=r"nll_loss2d_forward\w*",
        kernels=("nll_loss2d_forward", "nll_loss2d_forward.output"),
        in_backward=False,
        call="F.cross_entropy(logits, target)",
        instead="F.cross_entropy(logits.movedim(1, -1).flatten(0, -2), target.flatten())",
        note="only logits of more than two dimensions, such as images, raise",
    ),
    Operation(
        name="ctc_loss",
        error=r"ctc_loss_backward_gpu",
        kernels=("_ctc_loss_backward", "_ctc_loss_backward.Tensor"),
        in_backward=True,
        call="F.ctc_loss(log_probs, targets, input_lengths, target_lengths)",
        instead="F.ctc_loss(log_probs.float().cpu(), targets.cpu(), input_lengths, target_lengths)",
        ways=(Way(_NN + "CTCLoss"), Way(_F + "ctc_loss"), Way("torch.ctc_loss")),
    ),
    Operation(
        name="adaptive_avg_pool2d",
        error=r"adaptive_avg_pool2d_backward\w*",
        kernels=("_adaptive_avg_pool2d_backward",),
        in_backward=True,
        call="F.adaptive_avg_pool2d(x, (h, w))",
        instead="F.avg_pool2d(x, (x.shape[-2] // h, x.shape[-1] // w))",
        note=f"{_DIVIDES}. Output size 1 has a kernel. In torchvision's VGG and AlexNet, for images of 224 x 224, the pooling "
        "changes nothing: model.avgpool = nn.Identity()",
        ways=_adaptive("adaptive_avg_pool", ("1", "2"), _ONES),
    ),
    Operation(
        name="adaptive_avg_pool3d",
        error=r"adaptive_avg_pool3d_backward\w*",
        kernels=("_adaptive_avg_pool3d_backward",),
        in_backward=True,
        call="F.adaptive_avg_pool3d(x, (d, h, w))",
        instead="x.unflatten(-1, (w, -1)).unflatten(-3, (h, -1)).unflatten(-5, (d, -1)).mean((-1, -3, -5))",
        note=f"{_DIVIDES}. Output size 1 has a kernel",
        ways=_adaptive("adaptive_avg_pool", ("3",), _ONES),
    ),
    Operation(
        name="adaptive_max_pool2d",
        error=r"adaptive_max_pool[23]d_backward\w*",
        kernels=("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        in_backward=True,
        call="F.adaptive_max_pool2d(x, (h, w))",
        instead="F.max_pool2d(x, (x.shape[-2] // h, x.shape[-1] // w))",
        note=_DIVIDES,
        ways=_adaptive("adaptive_max_pool", ("1", "2"), ()),
    ),
    Operation(
        name="avg_pool3d",
        error=r"avg_pool3d_backward\w*",
        kernels=("avg_pool3d_backward",),
        in_backward=True,
        call="F.avg_pool3d(x, k)",
        instead="x.unflatten(-1, (-1, k)).unflatten(-3, (-1, k)).unflatten(-5, (-1, k)).mean((-1, -3, -5))",
        note="if k divides the sizes of x, and is the stride; otherwise on the CPU. LocalResponseNorm of images uses it: write "
        "F.local_response_norm(x.flatten(2), size).view_as(x)",
        ways=(
            Way(_NN + "AvgPool3d"),
            Way(_F + "avg_pool3d"),
            Way(_NN + "LocalResponseNorm"),
            Way(_F + "local_response_norm"),
        ),
    ),
    Operation(
        name="fractional_max_pool",
        error=r"fractional_max_pool[23]d_backward\w*",
        kernels=("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"),
        in_backward=True,
        call="F.fractional_max_pool2d(x, k, output_size=size)",
        instead="F.fractional_max_pool2d(x.cpu(), k, output_size=size).to(x.device)",
        ways=tuple(Way(f"{_NN}FractionalMaxPool{n}d") for n in "23")
        + tuple(Way(f"{_F}fractional_max_pool{n}d") for n in "23"),
    ),
    Operation(
        name="max_unpool",
        error=r"max_unpooling[23]d_forward\w*",
        kernels=("max_unpool2d", "max_unpool2d.out", "max_unpool3d", "max_unpool3d.out"),
        in_backward=False,
        call="F.max_unpool2d(x, indices, k, output_size=size)",
        instead="x.new_zeros(*x.shape[:2], math.prod(size)).scatter(-1, indices.flatten(2), x.flatten(2)).unflatten(-1, size)",
        ways=tuple(Way(f"{_NN}MaxUnpool{n}d") for n in "123") + tuple(Way(f"{_F}max_unpool{n}d") for n in "123"),
    ),
    Operation(
        name="reflection_pad",
        error=r"reflection_pad[123]d_backward\w*",
        kernels=tuple(f"reflection_pad{n}d_backward{out}" for n in "123" for out in _OUT),
        in_backward=True,
        call='F.pad(x, (p, p), mode="reflect")',
        instead="torch.cat([x[..., 1 : p + 1].flip(-1), x, x[..., -p - 1 : -1].flip(-1)], -1)",
        note="once for each dimension that is padded; before a convolution with padding_mode='reflect', which pads so",
        ways=(
            *(Way(f"{_NN}ReflectionPad{n}d") for n in "123"),
            Way(_F + "pad", "mode", 2, only=("reflect",)),
            *(Way(f"{_NN}Conv{n}d", "padding_mode", 8, only=("reflect",)) for n in "123"),
        ),
    ),
    Operation(
        name="upsample_linear1d",
        error=r"upsample_linear1d_backward\w*",
        kernels=("upsample_linear1d_backward", "upsample_linear1d_backward.grad_input"),
        in_backward=True,
        call='F.interpolate(x, size=n, mode="linear")',
        instead='F.interpolate(x.unsqueeze(-2), size=(1, n), mode="bilinear").squeeze(-2)',
        ways=(Way(_F + "interpolate", "mode", 3, only=("linear",)), Way(_NN + "Upsample", "mode", 2, only=("linear",))),
    ),
    Operation(
        name="upsample_bicubic2d",
        error=r"upsample_bicubic2d_backward\w*",
        kernels=("upsample_bicubic2d_backward", "upsample_bicubic2d_backward.grad_input"),
        in_backward=True,
        call='F.interpolate(x, size=size, mode="bicubic")',
        instead='F.interpolate(x.cpu(), size=size, mode="bicubic").to(x.device)',
        note="bilinear and trilinear have kernels on the GPU",
        ways=(Way(_F + "interpolate", "mode", 3, only=("bicubic",)), Way(_NN + "Upsample", "mode", 2, only=("bicubic",))),
    ),
    Operation(
        name="upsample_aa",
        error=r"upsample_gen2d_aa_backward\w*|_?upsample_(bilinear|bicubic)2d_aa_backward\w*",
        kernels=tuple(
            f"_upsample_{mode}2d_aa_backward{out}" for mode in ("bilinear", "bicubic") for out in ("", ".grad_input")
        ),
        in_backward=True,
        call='F.interpolate(x, size=size, mode="bilinear", antialias=True)',
        instead='F.interpolate(x.cpu(), size=size, mode="bilinear", antialias=True).to(x.device)',
        ways=(Way(_F + "interpolate", "antialias", 6, only=(True,)),),
    ),
    Operation(
        name="grid_sample",
        error=r"grid_sampler_[23]d_backward\w*",
        kernels=("grid_sampler_2d_backward", "grid_sampler_3d_backward"),
        in_backward=True,
        call="F.grid_sample(x, grid, align_corners=False)",
        instead="F.grid_sample(x.cpu(), grid.cpu(), align_corners=False).to(x.device)",
        ways=(Way(_F + "grid_sample"),),
    ),
    Operation(
        name="embedding_bag",
        error=r"embedding_bag_backward_cuda_max",
        kernels=("_embedding_bag_dense_backward",),
        in_backward=True,
        call='F.embedding_bag(tokens, weight, mode="max")',
        instead="F.embedding(tokens, weight).max(1).values",
        note="the modes mean and sum have kernels",
        ways=(Way(_NN + "EmbeddingBag", "mode", 5, only=("max",)), Way(_F + "embedding_bag", "mode", 6, only=("max",))),
    ),
    Operation(
        name="histc",
        error=r"_histc_cuda\b.*",
        kernels=("histc", "histc.out"),
        in_backward=False,
        call="torch.histc(x, bins, low, high)",
        instead="torch.histc(x.cpu(), bins, low, high).to(x.device)",
        note="to count classes: torch.bincount(classes, minlength=n)",
        ways=(Way("torch.histc"),),
    ),
    Operation(
        name="bincount",
        error=r"_bincount_cuda",
        kernels=("bincount",),
        in_backward=False,
        call="torch.bincount(x, weights, minlength=n)",
        instead="weights.new_zeros(n).index_add(0, x, weights)",
        note="without weights it has a kernel",
        ways=(Way("torch.bincount", "weights", 1),),
    ),
    Operation(
        name="median",
        error=r"median CUDA with indices output",
        kernels=("median.dim", "median.dim_values", "nanmedian.dim", "nanmedian.dim_values"),
        in_backward=False,
        call="torch.median(x, dim).values",
        instead="x.sort(dim=dim, stable=True).values.select(dim, (x.shape[dim] - 1) // 2)",
        note="the median of all elements, torch.median(x), has a kernel",
        ways=(Way("torch.median", "dim", 1), Way("torch.nanmedian", "dim", 1)),
    ),
    Operation(
        name="cumsum",
        error=r"cumsum_cuda_kernel",
        kernels=("cumsum", "cumsum_", "cumsum.out"),
        in_backward=False,
        call="x.cumsum(dim)",
        instead="x.cpu().cumsum(dim).to(x.device)",
        note="integers have a kernel, so for masks: mask.long().cumsum(dim). PyTorch's list names floating-point numbers, but "
        "recent versions may have a kernel for them",
    ),
    Operation(
        name="put_",
        error=r"put_",
        kernels=("put_",),
        in_backward=False,
        call="x.put(index, values)",
        instead="x.flatten().index_put((index,), values).view_as(x)",
        note="it is also the gradient of torch.take(x, index), for which write x.flatten()[index]",
        ways=(Way("torch.take"), Way("torch.put")),
    ),
    Operation(
        name="scatter_reduce",
        error=r"scatter_(scalar_)?reduce\w*",
        kernels=("scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out"),
        in_backward=False,
        call='x.scatter_reduce(dim, index, src, "prod")',
        instead='x.cpu().scatter_reduce(dim, index.cpu(), src.cpu(), "prod").to(x.device)',
        note="sum, mean, amax and amin have kernels",
        ways=(Way("torch.scatter_reduce", "reduce", 4, only=("prod",)),),
    ),
)
"""All of them, in no order."""


def by_name(name: str) -> Operation:
    """The operation with this name."""
    return next(operation for operation in OPERATIONS if operation.name == name)


def of_error(kernel: str) -> Operation | None:
    """The operation of a kernel that PyTorch's error names; None: it is in no row."""
    return next((operation for operation in OPERATIONS if re.fullmatch(operation.error, kernel)), None)


WAYS: Mapping[str, tuple[tuple[Operation, Way], ...]] = {
    name: tuple((operation, way) for operation in OPERATIONS for way in operation.ways if way.name == name)
    for name in dict.fromkeys(way.name for operation in OPERATIONS for way in operation.ways)
}
"""The operations to which a function or layer leads, by its full name."""
