"""Runs of this folder are replayed: see ``laboratory_of_replays``."""

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from crew import crew, warm_server
from warm import run_on

from lockstep._base.reports import REFUSED, REPORTS

__all__ = ["crew"]
SCRIPT = Path(__file__).with_name("spiky.py")
SETTINGS = ("--threads", "1", "--checkpoint-every", "3", "--keep", "100", "--journal-every", "4", "--progress", "off")


class Bench:
    """Trains and replays in one directory, on the fork server that is warm for the session."""

    def __init__(self, directory, server):
        self.directory = directory
        self._server = server
        shutil.copy(SCRIPT, directory / "spiky.py")

    def train(self, name, *args, nproc=2, shards=4, status=0, settings=SETTINGS):
        """``lockstep run``, to its end; the run's directory."""
        cut = () if shards is None else ("--shards", str(shards))
        words = ["--nproc", str(nproc), *cut, *settings, "--run-dir", f"runs/{name}", "spiky.py", *args]
        done = run_on(self._server(), self.directory, words)
        assert done.returncode == status, done.stdout + done.stderr
        return self.directory / "runs" / name

    def say(self, verb, *words, stdin=None):
        """``lockstep VERB WORDS``: its exit status, the code of its error, and its output."""
        reports = self.directory / "reports.jsonl"
        reports.unlink(missing_ok=True)
        env = {REPORTS: str(reports)}
        done = run_on(self._server(), self.directory, [str(word) for word in words], verb=verb, stdin=stdin, env=env)
        lines = map(json.loads, reports.read_text().splitlines() if reports.exists() else ())
        code = "".join(line["code"] for line in lines if line["kind"] == REFUSED)
        out, err = done.stdout, done.stderr
        return SimpleNamespace(status=done.returncode, code=code, out=out, err=err, all=out + err)

    def replay(self, run, *words, **options):
        """``lockstep replay RUN WORDS``; the run must be as it was."""
        before = content_of(run)
        done = self.say("replay", run, *words, **options)
        assert content_of(run) == before
        return done

    def replay_json(self, run, *words):
        """What ``--json`` prints, and the exit status."""
        done = self.replay(run, *words, "--json")
        return json.loads(done.out), done.status


def content_of(directory):
    """A digest of each file."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def bench(outlives_tests, request, tmp_path_factory):
    """A directory in which runs are trained once for all tests of a file."""
    return Bench(tmp_path_factory.mktemp("bench"), lambda: warm_server(request, outlives_tests))


@pytest.fixture(scope="module")
def healthy(bench):
    """A run of four shards, killed on three processes after step 7 and finished on two."""
    bench.train("healthy", "kill=7", nproc=3, status=137)
    return bench.train("healthy", "kill=7", nproc=2)
