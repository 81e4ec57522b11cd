"""A training script whose disk is full for a while, or read-only: ``cramped.py HOW FROM TO STEP_S``.

``HOW``: ``full`` (rank 0 fills the disk that the run's directory is on), ``read-only`` (it makes the checkpoints' directory
read-only), or ``never``. After step ``TO`` there is room again; 0: never again. From shortly before step
``FROM`` on, steps take ``STEP_S``.
"""

import errno
import subprocess
import sys
import time
from pathlib import Path

from striking import arm, network, samples, say_last_words
from torch import nn, optim

import lockstep

HOW, FROM, TO = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
NUM_EPOCHS = 8
STEP_S = float(sys.argv[4])


def fill(path):
    """Until not even a byte has room."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error  # noqa: PT017


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


team = lockstep.join()
arm(team)
model = network()
optimizer = optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, batches = team.prepare(model, optimizer, samples())
place = Path(team.run_dir)

for _epoch in team.epochs(NUM_EPOCHS):
    for batch in batches:
        for features, labels in batch.shards:
            loss = nn.functional.cross_entropy(model(features), labels)
            team.backward(loss)
            # Some kilobytes a step: TensorBoard's and the journal's files need room all the time.
            team.log(**{f"{'a value with a name that is very long indeed ' * 2}{number}": loss for number in range(30)})
        optimizer.step()
        optimizer.zero_grad()
        if HOW != "never" and team.is_main and team.step == FROM:
            if HOW == "full":
                fill(place / "ballast")
            else:
                (place / "checkpoints").mkdir(exist_ok=True)
                mount("--bind", place / "checkpoints", place / "checkpoints")
                mount("-o", "remount,ro,bind", place / "checkpoints")
        if HOW != "never" and team.is_main and team.step == TO:
            if HOW == "full":
                (place / "ballast").unlink()
            else:
                subprocess.run(["umount", "-l", place / "checkpoints"], check=True)
        if team.step > FROM - 10:
            time.sleep(STEP_S)

say_last_words(team, model)
