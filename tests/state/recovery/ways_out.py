"""A training that is left in a certain way at a certain place: ``ways_out.py WAY PLACE``, if LEAVE
is in the environment.

Its last line has the number of steps and the digest of the weights."""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch

import lockstep

WAY, PLACE, *HELD = sys.argv[1:]
LEAVES = "LEAVE" in os.environ
AT = 6


class LeftError(Exception):
    pass


def leave(team, place):
    """Leave the training here, if this is the place. True: the script is to do it, by the statement
    that it has there."""
    if not LEAVES or place != PLACE or team.step < AT:
        return False
    deadline = time.monotonic() + 60
    while not Path("run/checkpoints/newest").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    match WAY:
        case "exit 0":
            sys.exit(0)
        case "exit 1":
            sys.exit(1)
        case "exit text":
            sys.exit("the loss is not a number")
        case "quit":
            quit(1)
        case "raise exit":
            raise SystemExit(1)
        case "os._exit":
            os._exit(0)
        case "error" | "caught":
            raise LeftError
        case "interrupt":
            raise KeyboardInterrupt
        case "SIGTERM" | "SIGINT" | "SIGKILL":
            os.kill(os.getpid(), getattr(signal, WAY))
        case "break" | "continue" | "return":
            return True
    return False


def epochs_of(team):
    epochs = team.epochs(3)
    match HELD:
        case ["generator"]:  # as tqdm does
            return (epoch for epoch in epochs)
        case ["enumerate"]:
            return map(int, (epoch for _, epoch in enumerate(epochs)))
        case ["name"]:
            global kept
            kept = epochs
            return kept
        case ["iterator"]:
            kept = iter(epochs)
            return kept
    return epochs


def train():
    team = lockstep.join(shards=2, checkpoint_every=1, run_dir="run", threads=1, progress="off", seed=3)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.full((4, 4), number / 8) for number in range(4)]
    model, optimizer, loader = team.prepare(model, optimizer, batches)
    for _ in epochs_of(team):
        for batch in loader:
            for inputs in batch.shards:
                team.backward(model(inputs).square().mean())
                leave(team, "shards")
            optimizer.step()
            optimizer.zero_grad()
            if WAY == "continue":
                try:
                    if leave(team, "loader"):
                        raise LeftError
                except LeftError:
                    continue
            elif leave(team, "loader"):
                if WAY == "return":
                    return 1
                break
        with team.evaluate(model, batches) as evaluation:
            for inputs in evaluation.shards:
                evaluation.add(loss=model(inputs).mean(dim=1))
                leave(team, "evaluation")
        if leave(team, "epochs") or (LEAVES and WAY == "break" and team.step >= AT):
            break
    digest = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
    sys.stdout.write(f"ended {team.step} {digest}\n")  # at once: under torchrun ranks share a pipe
    sys.stdout.flush()
    leave(team, "after")
    return 0


if WAY in ("caught", "interrupt"):
    try:
        train()
    except (LeftError, KeyboardInterrupt):
        print("caught")
elif WAY == "return":
    sys.exit(train())
elif WAY == "thread":
    import threading

    PLACE, WAY = "loader", "error"
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
    if LEAVES and PLACE == "end":
        leave_with = {"exit 0": 0, "exit 1": 1}[WAY]
        sys.exit(leave_with)
