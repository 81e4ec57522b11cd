"""The models of ``shards.py``, all of them small, and random data for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

LABELS, WORDS, TOKENS = 10, 64, 16


class Residual(nn.Module):
    def __init__(self, main: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.main, self.shortcut = main, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.main(x) + self.shortcut(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(TOKENS, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(width, LABELS)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.last(self.layers(self.words(tokens) + self.places).mean(1))
        return result


def conv(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


def basic(before: int, width: int, stride: int) -> Residual:
    main = nn.Sequential(*conv(before, width, 3, stride), nn.ReLU(), *conv(width, width, 3))
    is_same = stride == 1 and before == width
    return Residual(main, nn.Identity() if is_same else nn.Sequential(*conv(before, width, 1, stride)))


def bottleneck(before: int, width: int) -> Residual:
    main = nn.Sequential(
        *conv(before, width, 1), nn.ReLU(), *conv(width, width, 3), nn.ReLU(), *conv(width, 4 * width, 1)
    )  # fmt: skip
    return Residual(main, nn.Identity() if before == 4 * width else nn.Sequential(*conv(before, 4 * width, 1)))


def resnet18(width: int = 8) -> nn.Module:
    """The shape of ResNet-18, with 20 BatchNorm layers, on images of 16 x 16."""
    layers: list[nn.Module] = [*conv(3, width, 3), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width * 2**stage
        layers += [basic(before, after, 1 if stage == 0 else 2), basic(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, LABELS))


def resnet50(width: int = 4) -> nn.Module:
    """The shape of ResNet-50, with 53 BatchNorm layers, without strides: images of 4 x 4 are too
    small for them, and are nothing to compute."""
    layers: list[nn.Module] = [*conv(3, width, 3), nn.ReLU()]
    before = width
    for stage, depth in enumerate((3, 4, 6, 3)):
        for _ in range(depth):
            layers.append(bottleneck(before, width * 2**stage))
            before = 4 * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, LABELS))


def cnn() -> nn.Module:
    """A small one, with two BatchNorm layers, on images of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(1024, LABELS),
    )  # fmt: skip


def mlp(width: int = 256) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, LABELS),
    )  # fmt: skip


MODELS = {"cnn": cnn, "resnet18": resnet18, "transformer": Transformer, "mlp": mlp, "resnet50": resnet50}
_SAMPLES = {"cnn": (1, 8, 8), "resnet18": (3, 16, 16), "mlp": (64,), "resnet50": (3, 4, 4)}


def make_model(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same weights each time."""
    torch.manual_seed(0)
    model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def make_data(name: str, number: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    if name == "transformer":
        inputs = torch.randint(WORDS, (number, TOKENS), generator=generator)
    else:
        inputs = torch.randn(number, *_SAMPLES[name], generator=generator)
    return TensorDataset(inputs, torch.randint(LABELS, (number,), generator=generator))
