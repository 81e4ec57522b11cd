"""Small data sets in the formats in which the real ones lie on a disk."""

import hashlib
import io
import struct
import tarfile

import numpy as np
from PIL import Image

CIFAR_CLASSES = (b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse", b"ship", b"truck")


def _text(value):
    """A string of Python 2: the archive was written with it."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def _number(value):
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def _array(array):
    """What numpy wrote for an array of bytes."""
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + _number(0) + b"\x85" + _text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + _text(b"u1") + _number(0) + _number(1) + b"\x87R"
    dtype += b"(" + _number(3) + _text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + _number(0) + b"tb"
    rows, columns = array.shape
    state = _number(1) + _number(rows) + _number(columns) + b"\x86" + dtype + b"\x89" + _text(array.tobytes())
    return empty + b"(" + state + b"tb"


def cifar_batch(images, labels, name):
    """The bytes of one file of the archive: a pickle of protocol 2 as Python 2 wrote it, which
    today's cannot write."""
    files = b"](" + b"".join(_text(b"%06d.png" % number) for number in range(len(labels))) + b"e"
    numbers = b"](" + b"".join(map(_number, labels)) + b"e"
    items = ((b"batch_label", _text(name)), (b"labels", numbers), (b"data", _array(images)), (b"filenames", files))
    return b"\x80\x02}(" + b"".join(_text(key) + value for key, value in items) + b"u."


def cifar_images(count, seed):
    """Bytes of ``count`` images, each a dim picture with a bright square whose place tells the
    class."""
    random = np.random.default_rng(seed)
    labels = [number % 10 for number in range(count)]
    images = random.integers(0, 100, (count, 3, 32, 32), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(label, 4)
        image[label % 3, 2 + 10 * row : 10 + 10 * row, 8 * column : 8 + 8 * column] += 150
    return images.reshape(count, -1), labels


def write_cifar(place, per_batch=40):
    """``cifar-10-python.tar.gz`` in ``place``, with ``per_batch`` images in each of its six
    batches."""
    place.mkdir(parents=True, exist_ok=True)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    contents = {n: cifar_batch(*cifar_images(per_batch, seed), n.encode()) for seed, n in enumerate(names)}
    with tarfile.open(place / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def write_images(root, classes=("n01440764", "n01443537", "n01484850"), per_class=(8, 4)):
    """JPEG files as in ImageNet: ``train/n01440764/n01440764_0.JPEG``; of any size, some grey, and
    coloured by class."""
    for part, count in zip(("train", "val"), per_class, strict=True):
        for label, name in enumerate(classes):
            directory = root / part / name
            directory.mkdir(parents=True)
            for number in range(count):
                seed = hashlib.sha256(f"{part} {name} {number}".encode()).digest()[0]
                random = np.random.default_rng(seed)
                height, width = random.integers(40, 120, 2)
                pixels = random.integers(0, 120, (height, width, 3), dtype=np.uint8)
                pixels[:, :, label % 3] += 120
                image = Image.fromarray(pixels)
                image = image.convert("L") if number == 3 else image
                image.save(directory / f"{name}_{number}.JPEG", quality=90)
