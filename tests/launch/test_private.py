"""Private directories: gone after a launch, also after one that was killed; never while somebody
uses them."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lockstep._base.errors import ConfigError
from lockstep._launch.private import private_directory, remove_abandoned

pytestmark = pytest.mark.timeout(40)


@pytest.fixture
def parent(tmp_path, monkeypatch):
    """The directory in which private directories are made."""
    found = tmp_path / "tmp"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


@pytest.fixture
def kill_holder(parent):
    """Call it: a process makes a private directory and is killed with SIGKILL; returns what it left
    behind."""

    def kill():
        source = (
            f"import tempfile, time; tempfile.tempdir = {str(parent)!r}\n"
            "from lockstep._launch.private import private_directory\n"
            "with private_directory() as path:\n"
            "    open(path + '/spec.pickle', 'w').close(); print(path, flush=True); time.sleep(100)"
        )
        with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True) as process:
            path = Path(process.stdout.readline().strip())
            process.send_signal(signal.SIGKILL)
        assert (path / "spec.pickle").exists()
        return path

    return kill


@pytest.mark.long
def test_the_next_launch_removes_what_a_killed_launcher_left(start_cold, tmp_path, parent):
    source = "import os, time; print(os.path.dirname(os.environ['LOCKSTEP_STORE']), flush=True); time.sleep(SLEEP)"
    environ = {**os.environ, "TMPDIR": str(parent)}
    killed = start_cold(source.replace("SLEEP", "100"), env=environ)
    left = Path(killed.stdout.readline().strip())
    assert left.is_relative_to(parent)
    killed.kill()
    killed.wait()
    assert left.exists()
    later = start_cold(source.replace("SLEEP", "0"), env=environ)
    out, err = later.communicate(timeout=100)
    assert (later.returncode, err) == (0, "")
    assert out
    assert list(parent.iterdir()) == []


EVERYTHING = """
import os, stat, torch.distributed as dist
from pathlib import Path
place = Path(os.environ["LOCKSTEP_PRIVATE_DIR"])
kept = [os.environ["LOCKSTEP_STORE"], *map(str, place.rglob("*.box"))]
print(stat.S_IMODE(place.stat().st_mode), stat.S_IMODE(place.parent.stat().st_mode), place, *kept)
"""


def test_only_its_user_can_enter_it_and_the_launch_keeps_everything_there(run_here):
    done = run_here(EVERYTHING)
    first, second, place, *kept = done.stdout.split()
    assert (first, second) == (str(0o700), str(0o700)), done
    assert len(kept) >= 2, done
    assert all(Path(path).is_relative_to(place) for path in kept), done
    assert not Path(place).exists()


def test_a_place_that_cannot_be_written_to_is_an_error_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"nowhere.*TMPDIR"), private_directory():
        pass


def test_one_that_is_in_use_stays(parent):
    with private_directory() as path:
        source = f"from lockstep._launch.private import remove_abandoned; remove_abandoned({str(parent)!r})"
        subprocess.run([sys.executable, "-c", source], check=True, timeout=100)
        remove_abandoned(str(parent))
        with private_directory() as other:
            assert Path(path).exists()
        assert Path(path).exists()
        assert not Path(other).exists()
    assert list(parent.iterdir()) == []


def test_what_others_made_stays(parent, kill_holder, monkeypatch):
    (parent / "lockstep-data").mkdir()
    (parent / "lockstep-file").touch()
    (parent / "lockstep-dangling").symlink_to(parent / "nowhere")
    of_another_host = kill_holder()
    tag = of_another_host.name.split("-")[1]
    of_another_host.rename(parent / of_another_host.name.replace(tag, f"{int(tag, 16) ^ 1:08x}"))
    elsewhere = parent / "mine"
    kill_holder().rename(elsewhere)
    others = kill_holder()
    (parent / f"{others.name}_link").symlink_to(elsewhere)
    before = sorted(parent.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: others.stat().st_uid + 1)
        remove_abandoned(str(parent))
    assert sorted(parent.iterdir()) == before
    remove_abandoned(str(parent / "nowhere"))
    remove_abandoned(str(parent))
    assert sorted(parent.iterdir()) == [path for path in before if path != others]
    assert (elsewhere / "spec.pickle").exists()
