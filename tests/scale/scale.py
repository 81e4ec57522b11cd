"""One training on every number of processes, each stopped and resumed on the next one: one digest.

    make scale WORLDS=1,3,16,64,128

Prints a line for each number: seconds until the ranks have joined, milliseconds of a step, accuracy
and digest. Ends with 1 if the digests differ.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TRAIN = Path(__file__).with_name("train.py")
STOPPED = 75
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Launch:
    """One launch of the training."""

    world_size: int
    directory: Path
    epochs: int
    stop_at: int = 0
    """The step at which it is asked to stop; 0: it runs to its end."""

    def run(self) -> str:
        """Its output."""
        command = [
            "run",
            "--nproc-per-node",
            self.world_size,
            "--threads",
            1,
            "--progress",
            "off",
            "--run-dir",
            "run",
            TRAIN,
        ]
        env = {**os.environ, "STOP_AT": str(self.stop_at), "EPOCHS": str(self.epochs)}
        done = subprocess.run(
            [sys.executable, "-m", "lockstep", *map(str, command)],
            cwd=self.directory,
            env=env,
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode != (STOPPED if self.stop_at else 0):
            raise SystemExit(f"{self.world_size} processes ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def train(world_size: int, next_size: int, epochs: int) -> str:
    """The last words of a training on ``world_size`` processes, of which ``next_size`` take the
    last two fifths."""
    with tempfile.TemporaryDirectory(prefix="lockstep-scale-") as directory:
        began = time.monotonic()
        Launch(world_size, Path(directory), epochs, stop_at=epochs * 12).run()
        stopped = time.monotonic()
        output = Launch(next_size, Path(directory), epochs).run()
        print(
            f"{world_size:4} processes: {epochs * 12} steps in {stopped - began:.0f} s with the start; "
            f"{epochs * 8} more on {next_size} in {time.monotonic() - stopped:.0f} s",
            flush=True,
        )
    (words,) = re.findall(r"^step .*", output, re.MULTILINE)
    return words


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="1,3,16,64,128", help="numbers of processes, at most 128 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="of 20 steps (default: %(default)s)")
    args = parser.parse_args()
    sizes = [int(number) for number in args.worlds.split(",")]
    words = {size: train(size, after, args.epochs) for size, after in zip(sizes, [*sizes[1:], sizes[0]], strict=True)}
    for size, said in words.items():
        print(f"{size:4} processes: {said}")
    same = len(set(words.values())) == 1
    print("PASS  one digest" if same else "FAIL  the digests differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
