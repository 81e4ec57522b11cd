"""The bits of a tree, taken down before a change and compared after it.

::

    python tests/contract/golden.py bits.json       # writes the file
    python tests/contract/golden.py bits.json       # it exists: names what differs, with status 1

``--only TEXT``: the trainings with this text in their names, such as "exact 2: " or "digits".

Every training of the corpus runs with each strategy that trains it, with ``exact`` on 1, 2 and 3
processes, and examples/digits.py and examples/transformer.py on 2. The contract's tests compare
numbers of processes with each other; a change that is wrong alike on all of them shows only here.
Bits differ between kinds of CPU and versions of PyTorch, so a file belongs to the machine that
wrote it."""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(ROOT / "examples")])  # for the processes of a launch

from contract_corpus import CORPUS, ROUNDED, SHARDED  # noqa: E402

import lockstep  # noqa: E402

EXAMPLES = ("digits.py", "transformer.py")
LAUNCHES = [
    *(("exact", nproc, CORPUS) for nproc in (1, 2, 3)),
    *(("fsdp", nproc, SHARDED) for nproc in (1, 2)),
    ("ddp", 2, ROUNDED),
    ("single", 1, ROUNDED),
]


def digest(value):
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def train(corpus, strategy):
    """What a rank sees of each training, or the error that it ends with, as a digest."""
    del sys.modules["__main__"].__file__  # else each join reads this script and all that it imports
    join, found = lockstep.join, {}
    for name, training in corpus.items():
        settings = {"shards": 4, "checkpoint_every": "off", **training.settings, "strategy": strategy}
        teams = []

        def joined(settings=settings, teams=teams, **more):
            teams.append(join(**{"threads": 1, "progress": "off", **settings, **more}))
            return teams[-1]

        lockstep.join = joined
        try:
            found[name] = digest(training.task())
        except lockstep.LockstepError as error:
            found[name] = f"{type(error).__name__} {error.code}"
        for team in teams:
            team.close()
    return found


def example(name):
    """The digest of the weights and the optimizer's state that an example ends with."""
    with tempfile.TemporaryDirectory() as run_dir:
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "run",
            "--nproc-per-node",
            "2",
            "--run-dir",
            run_dir,
            ROOT / "examples" / name,
        ]
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=True)
        [manifest] = Path(run_dir).glob("checkpoints/*/manifest.json")
        files = sorted(manifest.parent.glob("*.safetensors"))
        return digest([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])


def bits(only):
    """The digest of every training, by its strategy, its number of processes and its name."""
    found = {}
    for strategy, nproc, corpus in LAUNCHES:
        wanted = {name: corpus[name] for name in corpus if only in f"{strategy} {nproc}: {name}"}
        if wanted:
            ranks = lockstep.launch(train, wanted, strategy, nproc=nproc, progress="off")
            found.update({f"{strategy} {nproc}: {name}": [each[name] for each in ranks] for name in wanted})
            print(f"{strategy} on {nproc}: {len(wanted)} trainings", file=sys.stderr, flush=True)
    return {**found, **{name: example(name) for name in EXAMPLES if only in name}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the digests: written, or compared with if it exists")
    parser.add_argument("--only", default="", metavar="TEXT", help="trainings whose names contain this")
    asked = parser.parse_args()
    path = asked.file.absolute()
    before = json.loads(path.read_text()) if path.exists() else None
    with tempfile.TemporaryDirectory() as cwd:
        os.chdir(cwd)
        now = bits(asked.only)
        os.chdir(ROOT)
    if before is None:
        path.write_text(json.dumps(now, indent=1))
        print(f"{len(now)} digests in {path}")
        return 0
    known = {name: digests for name, digests in before.items() if asked.only in name}
    changed = [name for name in {**known, **now} if known.get(name) != now.get(name)]
    print("\n".join([f"{len(now) - len(changed)} of {len(now)} as before", *changed]))
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
