"""Residual networks for cifar10.py and imagenet.py.

Layers have torchvision's names, so that its weights fit.
"""

from torch import nn


def convolution(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Convolutions whose result is added to their input."""

    def __init__(self, inputs, outputs, stride, layers):
        super().__init__()
        for number, (inside, outside, size, step) in enumerate(layers, 1):
            self.add_module(f"conv{number}", convolution(inside, outside, size, step))
            self.add_module(f"bn{number}", nn.BatchNorm2d(outside))
        self.num_layers = len(layers)
        self.downsample = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.num_layers == 3:
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def basic(inputs, width, stride):
    """A block of two convolutions."""
    return Block(inputs, width, stride, [(inputs, width, 3, stride), (width, width, 3, 1)])


def bottleneck(inputs, width, stride):
    """A block of three convolutions. The middle one has a quarter of the channels."""
    layers = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
    return Block(inputs, 4 * width, stride, layers)


class ResNet(nn.Module):
    """A network with four stages of blocks.

    Args:
        block: ``basic`` or ``bottleneck``.
        depths: The number of blocks in each stage.
        num_classes: The number of outputs per image.
        small_images: Whether the first layers keep the size of images, for example of 32 x 32.
            Otherwise they shrink them, as images of 224 x 224 need.
    """

    def __init__(self, block, depths, num_classes, small_images=False):
        super().__init__()
        self.conv1 = convolution(3, 64, 3) if small_images else convolution(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for number, depth in enumerate(depths, 1):
            width, blocks = 32 * 2**number, []
            for position in range(depth):
                blocks.append(block(channels, width, 2 if number > 1 and position == 0 else 1))
                channels = width if block is basic else 4 * width
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images):
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


DEPTHS = {
    "resnet18": (basic, (2, 2, 2, 2)),
    "resnet34": (basic, (3, 4, 6, 3)),
    "resnet50": (bottleneck, (3, 4, 6, 3)),
    "resnet101": (bottleneck, (3, 4, 23, 3)),
    "resnet152": (bottleneck, (3, 8, 36, 3)),
}


def make_resnet(name, num_classes, small_images=False):
    """Returns one of ``DEPTHS``, with random weights."""
    return ResNet(*DEPTHS[name], num_classes, small_images)
