"""Tensors of the device ``meta`` in the place of a GPU's: what PyTorch's kernels for CUDA refuse
with deterministic algorithms is refused here, with the same error, in forward and backward
passes."""

import re

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TEXT = "does not have a deterministic implementation, but you set 'torch.use_deterministic_algorithms(True)'."

# The name in PyTorch's error, as its own tests of these errors have it (test/test_torch.py), by the
# operator that raises it.
KERNELS = {
    r"nll_loss2d_forward": "nll_loss2d_forward_out_cuda_template",
    r"_ctc_loss_backward": "ctc_loss_backward_gpu",
    r"_adaptive_(avg_pool[23]d)_backward": r"adaptive_\1_backward_cuda",
    r"(adaptive_max_pool[23]d|avg_pool3d|fractional_max_pool[23]d|grid_sampler_[23]d)_backward": r"\1_backward_cuda",
    r"max_unpool([23]d)": r"max_unpooling\1_forward_out",
    r"(reflection_pad[123]d|upsample_(linear1d|bicubic2d|bilinear2d|trilinear3d))_backward": r"\1_backward_out_cuda",
    r"_upsample_(bilinear|bicubic)2d_aa_backward": "upsample_gen2d_aa_backward_out_cuda",
    r"_embedding_bag(_dense)?_backward": "embedding_bag_backward_cuda_max",
    r"histc": "_histc_cuda with floating point input",
    r"bincount": "_bincount_cuda",
    r"(nan)?median": "median CUDA with indices output",
    r"cumsum_?": "cumsum_cuda_kernel",
    r"put_?": "put_",
    r"scatter_reduce_?": "scatter_reduce_cuda_kernel",
}
MAX = 2  # the mode of an embedding bag


def argument(name, place, args, kwargs):
    return args[place] if place < len(args) else kwargs.get(name)


# When the operator has a deterministic kernel, by its arguments.
UNLESS = {
    "nll_loss2d_forward": lambda *given: argument("reduction", 3, *given) == 0,
    "_embedding_bag_backward": lambda *given: argument("mode", 8, *given) != MAX,
    "_embedding_bag_dense_backward": lambda *given: argument("mode", 7, *given) != MAX,
    "bincount": lambda *given: argument("weights", 1, *given) is None,
    "histc": lambda args, kwargs: not args[0].is_floating_point(),
    "cumsum": lambda args, kwargs: not args[0].is_floating_point(),
    "cumsum_": lambda args, kwargs: not args[0].is_floating_point(),
    "scatter_reduce": lambda *given: argument("reduce", 4, *given) != "prod",
    "scatter_reduce_": lambda *given: argument("reduce", 4, *given) != "prod",
}


def refused(func, args, kwargs):
    """The name in the error of this call on CUDA; None: it has a deterministic kernel."""
    name, _, overload = func.__name__.partition(".")
    if name in ("median", "nanmedian") and overload == "default":  # of all elements
        return None
    for pattern, kernel in KERNELS.items():
        if (match := re.fullmatch(pattern, name)) is not None:
            has_kernel = name in UNLESS and UNLESS[name](args, kwargs)
            return None if has_kernel else match.expand(kernel)
    return None


def tensors(*values):
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(*value)


class Refusing(TorchDispatchMode):
    """While it is entered, deterministic kernels are on, and tensors on ``device`` are a GPU's."""

    def __init__(self, device="meta"):
        super().__init__()
        self._device = device

    def __enter__(self):
        self._mode = torch.get_deterministic_debug_mode()
        torch.use_deterministic_algorithms(True)
        return super().__enter__()

    def __exit__(self, *raised):
        torch.set_deterministic_debug_mode(self._mode)
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        on_device = any(tensor.device.type == self._device for tensor in tensors(args, *kwargs.values()))
        if on_device and (kernel := refused(func, args, kwargs)) is not None:
            raise RuntimeError(f"{kernel} {TEXT}")
        if self._device == "meta" and on_device and str(kwargs.get("device")) == "cpu":
            # A tensor of the device ``meta`` has no values to copy.
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)
