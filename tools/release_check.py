"""The checks before a release, and the steps that remain to publish it: ``make release-check``,
after ``make wheel``.

twine checks the wheel and the source archive in dist/ (metadata, and whether PyPI can show the
README). The wheel is installed into a separate environment, where a new script trains on two
processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"\]\((?!https?:|#)[^)]+\)")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def environment(place: Path, *packages: str | Path) -> Path:
    """The directory of programs of a new environment with these packages."""
    venv.create(place, with_pip=True, symlinks=True)
    pip = [place / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(*pip, "-c", ROOT / "constraints.txt", *packages)
    return place / "bin"


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(packed.read(name).decode())


def left(metadata: Message) -> Iterator[str]:
    """What a person has to do."""
    version = str(metadata["Version"])
    if "Project-URL" not in metadata:
        yield "pyproject.toml has no [project.urls]: PyPI would not say where the source is"
    if relative := RELATIVE.findall((ROOT / "README.md").read_text()):
        yield f"{len(relative)} links and pictures of README.md are relative: on PyPI they lead nowhere"
    if not re.search(rf"^## .*{re.escape(version)}", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE):
        yield f"CHANGELOG.md has no heading for {version}"
    tags = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if f"v{version}" not in tags:
        yield f"no tag: git tag v{version}"
    yield f"the upload, and with the first one the name {metadata['Name']}: twine upload dist/*"


def main() -> None:
    files = sorted((ROOT / "dist").glob("torch_lockstep-*"))
    (wheel,) = (file for file in files if file.suffix == ".whl")
    with tempfile.TemporaryDirectory() as scratch:
        tools = environment(Path(scratch, "twine"), "twine")
        run(tools / "twine", "check", "--strict", *files)
        programs = environment(Path(scratch, "clean"), wheel)
        run(programs / "lockstep", "--version", cwd=Path(scratch))
        run(programs / "lockstep", "new", "my-training", cwd=Path(scratch))
        run(
            programs / "lockstep", "run", "--nproc-per-node", "2", "my-training/train.py", "--epochs", "1", cwd=Path(scratch)
        )
    print(f"{wheel.name} installs and trains. Left to publish it:")
    for line in left(metadata_of(wheel)):
        print(f"  - {line}")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"NOT ready: {' '.join(error.cmd)} ended with status {error.returncode}")
