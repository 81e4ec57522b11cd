"""Promises of the manifest: any change of any file is noticed, and what is of a newer version is
said to be."""

import dataclasses
import hashlib
import json
from random import Random

import pytest
from checkpoint_files import write_files
from codes import raises

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.files import checksum
from lockstep._state.checkpoint.manifest import FILE_NAME, FORMAT, OLDEST_FORMAT, Manifest, verify, verify_file

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def checkpoint(tmp_path):
    write_files(tmp_path / "step-00000007", 7, world_size=3, registered=["modèle"]).write(tmp_path / "step-00000007")
    return tmp_path / "step-00000007"


def test_what_is_written_is_read_back(tmp_path):
    manifest = Manifest(
        kind="weights",
        step=7,
        epoch=1,
        time_s=12.25,
        finished=True,
        position={"section": 1},
        birth={"seed": 3},
        numerics={"cudnn_benchmark": False},
        world_size=4,
        versions={"torch": "2"},
        objects=[
            {"kind": "model", "name": "model", "type": "Net", "lines": ["0 of shape (2,)"], "options": {}, "file": "a"}
        ],
        registered=["table", "\ud800"],
        loaders=[["a line"]],
        metric=0.1,
        files={"a": {"bytes": 10, "crc32": "0"}, "b": {"bytes": 5, "sha256": "1"}},
    )
    assert all(getattr(manifest, field.name) != field.default for field in dataclasses.fields(Manifest))
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert manifest.num_bytes == 15
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_sound_checkpoint_is_verified(checkpoint):
    assert verify(checkpoint).step == 7


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', "\xff"])
def test_what_is_no_manifest_is_named(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["state.json", "model.safetensors"])
def test_a_file_that_is_missing_cut_short_or_changed_is_named(checkpoint, name):
    path = checkpoint / name
    sound, manifest = path.read_bytes(), Manifest.read(checkpoint)
    path.write_bytes(sound[:-1])
    with pytest.raises(CheckpointError, match=rf"{name}.* {len(sound) - 1} bytes.* {len(sound)} "):
        verify(checkpoint)
    path.write_bytes(b"X" + sound[1:])
    verify_file(checkpoint, manifest, name, sizes_only=True)
    with pytest.raises(CheckpointError, match=f"{name}.*checksum"):
        verify(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        verify(checkpoint)
    path.mkdir()
    with pytest.raises(CheckpointError, match=name):
        verify(checkpoint)


def test_a_directory_without_a_manifest_is_no_checkpoint(checkpoint):
    (checkpoint / FILE_NAME).unlink()
    with raises(CheckpointError, "manifest-missing"):
        verify(checkpoint)


def make_format_3(checkpoint):
    """Rewrite a manifest as lockstep wrote it until format 4."""
    content = json.loads((checkpoint / FILE_NAME).read_text())
    files = {
        name: {"bytes": entry["bytes"], "sha256": hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()}
        for name, entry in content["files"].items()
    }
    write_manifest(checkpoint, {**content, "format": 3, "files": files})


def write_manifest(checkpoint, content):
    # as the documentation of the format has it
    rest = {key: value for key, value in content.items() if key != "checksum"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    (checkpoint / FILE_NAME).write_text(json.dumps({**rest, "checksum": hashlib.sha256(text.encode()).hexdigest()}))


def test_a_checkpoint_of_format_3_is_verified_by_its_sha_256(checkpoint):
    new = verify(checkpoint)
    make_format_3(checkpoint)
    old = verify(checkpoint)
    assert dataclasses.replace(old, files={}) == dataclasses.replace(new, files={})
    # as its end is marked: the format is new, and the files keep their checksums
    dataclasses.replace(old, finished=True).write(checkpoint)
    assert verify(checkpoint).finished
    path = checkpoint / "model.safetensors"
    path.write_bytes(b"X" + path.read_bytes()[1:])
    with raises(CheckpointError, "checkpoint-damaged"):
        verify(checkpoint)


def test_a_file_without_any_checksum_is_not_taken_for_sound(checkpoint):
    content = json.loads((checkpoint / FILE_NAME).read_text())
    del content["files"]["model.safetensors"]["crc32"]
    write_manifest(checkpoint, content)
    with raises(CheckpointError, "checkpoint-damaged"):
        verify(checkpoint)


PAGE = 4096
LARGE = 2300 * PAGE + 17
"""The size of a file of several blocks."""


def swap_pages(content):
    return (
        content[:PAGE]
        + content[5 * PAGE : 6 * PAGE]
        + content[2 * PAGE : 5 * PAGE]
        + content[PAGE : 2 * PAGE]
        + content[6 * PAGE :]
    )


def swap_words(content):
    return content[8:16] + content[:8] + content[16:]


def flip_two(content):
    """Flips a bit from 0 to 1, and the same bit of another word from 1 to 0."""
    content = bytearray(content)
    first = next(i for i in range(0, LARGE, 8) if not content[i] & 1)
    second = next(i for i in range(8 * 9000, LARGE, 8) if content[i] & 1)
    content[first] ^= 1
    content[second] ^= 1
    return bytes(content)


DAMAGE = {
    "a zeroed page": lambda content: content[: 7 * PAGE] + bytes(PAGE) + content[8 * PAGE :],
    "a zeroed end": lambda content: content[: -3 * PAGE] + bytes(3 * PAGE),
    "a page twice": lambda content: content[:PAGE] + content[:PAGE] + content[2 * PAGE :],
    "pages in each other's places": swap_pages,
    "blocks in each other's places": lambda content: content[1 << 22 : 1 << 23] + content[: 1 << 22] + content[1 << 23 :],
    "words in each other's places": swap_words,
    "all of it further on by a page": lambda content: content[-PAGE:] + content[:-PAGE],
    "two bits that a sum does not see": flip_two,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("is_old", [False, True])
def test_what_disks_do_to_a_file_is_noticed(checkpoint, damage, is_old):
    path = checkpoint / "model.safetensors"
    sound = Random(0).randbytes(LARGE)
    path.write_bytes(sound)
    content = json.loads((checkpoint / FILE_NAME).read_text())
    content["files"]["model.safetensors"] = {"bytes": LARGE, "crc32": checksum(path)}
    write_manifest(checkpoint, content)
    if is_old:
        make_format_3(checkpoint)
    verify(checkpoint)
    path.write_bytes(DAMAGE[damage](sound))
    assert path.stat().st_size == LARGE
    with raises(CheckpointError, "checkpoint-damaged"):
        verify(checkpoint)


def test_damage_is_not_said_to_be_another_format(checkpoint):
    path = checkpoint / FILE_NAME
    before, after = (f'"format": {version}' for version in (FORMAT, FORMAT + 1))
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with raises(CheckpointError, "checkpoint-damaged"):
        verify(checkpoint)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (FORMAT + 1, "checkpoint-format-newer"),
        (OLDEST_FORMAT - 1, "checkpoint-format"),
        ("1", "checkpoint-format"),
        (True, "checkpoint-format"),
    ],
)
def test_another_format_is_said_to_be_one_whatever_else_is_in_it(checkpoint, version, code):
    content = {"format": version, "step": 7, "what no version knows yet": []}
    # as the documentation of the format has it
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (checkpoint / FILE_NAME).write_text(json.dumps({**content, "checksum": hashlib.sha256(text.encode()).hexdigest()}))
    with raises(CheckpointError, code):
        verify(checkpoint)
