"""Runs the lines of code of the table of operations without a deterministic kernel."""

import math

import torch
from torch.nn import functional as F  # noqa: N812


def numbers(*shape):
    return torch.randn(*shape, requires_grad=True)


def inputs(name):
    """What the lines of an operation name."""
    image, volume = numbers(2, 3, 6, 8), numbers(2, 3, 6, 4, 8)
    return {
        "nll_loss2d": lambda: {"logits": image, "target": torch.randint(3, (2, 6, 8))},
        "ctc_loss": lambda: {
            "log_probs": numbers(9, 2, 5),
            "targets": torch.randint(1, 5, (2, 3)),
            "input_lengths": (9, 7),
            "target_lengths": (3, 2),
        },
        "adaptive_avg_pool2d": lambda: {"x": image, "h": 3, "w": 4},
        "adaptive_max_pool2d": lambda: {"x": image, "h": 3, "w": 4},
        "adaptive_avg_pool3d": lambda: {"x": volume, "d": 3, "h": 2, "w": 4},
        "avg_pool3d": lambda: {"x": volume, "k": 2},
        "fractional_max_pool": lambda: {"x": image, "k": 2, "size": (3, 4)},
        "max_unpool": lambda: {
            "x": numbers(2, 3, 3, 4),
            "indices": F.max_pool2d(image, 2, return_indices=True)[1],
            "k": 2,
            "size": (6, 8),
        },
        "reflection_pad": lambda: {"x": image[0], "p": 3},
        "upsample_linear1d": lambda: {"x": numbers(2, 3, 5), "n": 12},
        "upsample_bicubic2d": lambda: {"x": image, "size": (9, 5)},
        "upsample_aa": lambda: {"x": image, "size": (3, 5)},
        "grid_sample": lambda: {"x": image, "grid": torch.rand(2, 5, 5, 2) * 2 - 1},
        "embedding_bag": lambda: {"tokens": torch.randint(7, (4, 3)), "weight": numbers(7, 5)},
        "histc": lambda: {"x": numbers(50), "bins": 5, "low": -1, "high": 1},
        "bincount": lambda: {"x": torch.randint(4, (30,)), "weights": torch.rand(30), "n": 6},
        "median": lambda: {"x": image, "dim": 2},
        "cumsum": lambda: {"x": image, "dim": 1},
        "put_": lambda: {"x": image, "index": torch.tensor([3, 70, 9]), "values": numbers(3)},
        "scatter_reduce": lambda: {
            "x": image,
            "dim": 1,
            "index": torch.randint(3, (2, 3, 6, 8)),
            "src": numbers(2, 3, 6, 8),
        },
    }[name]()


def moved(values, device):
    """The same on another device."""
    return {
        name: value.detach().to(device).requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def run(line, values):
    """The result of a line of code, and the gradients of its sum's square."""
    torch.manual_seed(3)
    result = eval(line, {"torch": torch, "F": F, "math": math, **values})
    leaves = [value for value in values.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    return result, torch.autograd.grad(result.square().sum(), leaves) if result.requires_grad else ()
