"""Small checkpoints, what to do to their files, and runs that write each of them at once."""

import weakref
from pathlib import Path
from random import Random
from typing import Any

from lockstep._state.checkpoint.files import checksum
from lockstep._state.checkpoint.manifest import File, Manifest


def write_files(directory: Path, step: int, **fields: Any) -> Manifest:
    """The files of a checkpoint, with a content that tells the step, and a manifest that is not
    written yet."""
    directory.mkdir(parents=True)
    for name in ("state.json", "model.safetensors"):
        (directory / name).write_text(f"{name} of step {step}, and more that is {fields}")
    files: dict[str, File] = {
        path.name: {"bytes": path.stat().st_size, "crc32": checksum(path)} for path in directory.iterdir()
    }
    return Manifest(step=step, epoch=0, time_s=1.5, files=files, **fields)


def flip(path: Path, random: Random) -> None:
    """Damage a file by one bit."""
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def save_at_once(saver: Any) -> None:
    """From now on every checkpoint is written when ``saver.save`` returns, so that none is left out
    because steps are faster."""
    # by a proxy: a saver that keeps itself would keep the store of its run, which listens at a port
    save, proxy = type(saver).save, weakref.proxy(saver)

    def save_and_wait(*args: Any, **options: Any) -> None:
        save(proxy, *args, **options)
        assert proxy.wait_until_written()

    saver.save = save_and_wait
