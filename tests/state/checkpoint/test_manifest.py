"""Promises of the manifest: any change of any file is noticed, and what is of a newer version is
said to be."""

import dataclasses
import hashlib
import json

import pytest
from checkpoint_files import write_files
from codes import raises

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.manifest import FILE_NAME, FORMAT, Manifest, verify, verify_file

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
        files={"a": {"bytes": 10, "sha256": "0"}, "b": {"bytes": 5, "sha256": "1"}},
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
    with pytest.raises(CheckpointError, match=f"{name}.*SHA-256"):
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
    [(FORMAT + 1, "checkpoint-format-newer"), (0, "checkpoint-format"), ("1", "checkpoint-format")],
)
def test_another_format_is_said_to_be_one_whatever_else_is_in_it(checkpoint, version, code):
    content = {"format": version, "step": 7, "what no version knows yet": []}
    # as the documentation of the format has it
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    (checkpoint / FILE_NAME).write_text(json.dumps({**content, "checksum": hashlib.sha256(text.encode()).hexdigest()}))
    with raises(CheckpointError, code):
        verify(checkpoint)
