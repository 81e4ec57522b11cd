"""Small checkpoints, and what to do to their files."""

from lockstep._state.checkpoint.files import checksum
from lockstep._state.checkpoint.manifest import Manifest


def write_files(directory, step, **fields):
    """The files of a checkpoint, with a content that tells the step, and a manifest that is not
    written yet."""
    directory.mkdir(parents=True)
    for name in ("state.json", "model.safetensors"):
        (directory / name).write_text(f"{name} of step {step}, and more that is {fields}")
    files = {path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)} for path in directory.iterdir()}
    return Manifest(step=step, epoch=0, time_s=1.5, files=files, **fields)


def flip(path, random):
    """Damage a file by one bit."""
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)
