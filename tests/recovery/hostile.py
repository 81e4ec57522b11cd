"""What a run directory may hold that no lockstep has written: files of other kinds, and JSON of wrong types."""

import json
import os
import zlib

from lockstep.state.checkpoint.manifest import FILE_NAME as MANIFEST
from lockstep.state.checkpoint.manifest import _digest
from lockstep.tools.explain.black_box import _HEADER, _MAGIC, SLOT_BYTES, read_box

HUGE = "1" + "0" * 5000
WRONG = ("null", '"x"', '""', "-1", HUGE[:30], HUGE, "1e308", "1e400", "NaN", "true", "[]", "{}", '[["x"]]', '{"x": null}')
"""Values in JSON, for fields of any type."""
_PLACE = "<here>"


def _holding(text):
    return lambda path: path.write_text(text)


def _hole(path):
    with path.open("wb") as file:
        file.truncate(1 << 30)


KINDS = {
    "a FIFO": os.mkfifo,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("/nowhere"),
    "a directory": lambda path: path.mkdir(),
    "empty": _holding(""),
    "a list": _holding("[]\n"),
    "a word": _holding("word\n"),
    "deep": _holding("[" * 100_000),
    "a huge number": _holding(HUGE),
    "a gigabyte of zeros": _hole,
}
"""What may be in the place of a file, and what makes it."""


def replace(path, kind):
    path.unlink()
    KINDS[kind](path)


def set_in_manifest(checkpoint, **fields):
    """Change fields of a manifest, whose checksum is right."""
    path = checkpoint / MANIFEST
    content = {**json.loads(path.read_text()), **fields}
    del content["checksum"]
    path.write_text(json.dumps({**content, "checksum": _digest(content)}))


def wrong_json(path):
    """Every way in which one value of a JSON file, journal or black box can be a wrong one: a name, and the file's content."""
    if path.suffix == ".box":
        texts, content_of = [json.dumps(read_box(path))], _box
    elif path.suffix == ".jsonl":
        texts = {json.loads(line)["event"]: line for line in path.read_text().splitlines()}.values()
        sound = path.read_text()

        def content_of(text):
            return f"{sound}{text}\n".encode()
    else:
        texts, content_of = [path.read_text()], str.encode
    for text in texts:
        value = json.loads(text)
        value.pop("checksum", None)
        for place in _places(value):
            for wrong in WRONG:
                changed = _with(value, place, wrong)
                if path.name == MANIFEST:
                    changed = _with_checksum(changed)
                yield f"{path.name} {value.get('event', '')} {'.'.join(map(str, place))}: {wrong:.20}", content_of(changed)


def _places(value, place=()):
    """The paths of all values in a JSON value: the keys that lead to them. Of lists, only the first item is visited."""
    yield place
    if isinstance(value, dict):
        for key in value:
            yield from _places(value[key], (*place, key))
    elif isinstance(value, list) and value:
        yield from _places(value[0], (*place, 0))


def _with(value, place, wrong):
    """The text of a JSON value with the text ``wrong`` in one place."""
    changed = json.loads(json.dumps([value]))
    inner = changed
    for key in (0, *place)[:-1]:
        inner = inner[key]
    inner[(0, *place)[-1]] = _PLACE
    return json.dumps(changed)[1:-1].replace(f'"{_PLACE}"', wrong)


def _with_checksum(text):
    try:
        content = json.loads(text)
        return json.dumps({**content, "checksum": _digest(content)})
    except (ValueError, TypeError):  # it is no object
        return text


def _box(text):
    data = text.encode()
    return (_HEADER.pack(_MAGIC, 1, len(data), zlib.crc32(data)) + data).ljust(2 * SLOT_BYTES, b"\0")
