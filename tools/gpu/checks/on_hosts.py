"""The script that the check ``hosts`` runs on several machines: trains a GPT, and writes down its
digest and what each network interface of this machine sent during the steps that count."""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path
from typing import Any

import torch

import lockstep
from gpu.checks.models import gpt
from gpu.checks.nics import sent_bytes
from gpu.checks.training import digest, state_of
from gpu.checks.verdict import settle

WARM = 3
COUNTED = {False: 20, True: 3}
"""Steps, by whether the check is tiny."""


def look(team: lockstep.Team) -> tuple[float, dict[str, int]]:
    """The time, and what this machine has sent, when all ranks have finished what came before."""
    settle(team.device)
    team.barrier()
    return time.perf_counter(), sent_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--found", type=Path, required=True)
    args = parser.parse_args()
    counted = COUNTED[args.tiny]
    with lockstep.join(progress="off", checkpoint_every="off", threads=1, seed=1) as team:
        made = gpt(WARM + counted + 1, tiny=args.tiny)
        optimizer = torch.optim.SGD(made.model.parameters(), lr=0.001, momentum=0.9)
        num_bytes = sum(parameter.numel() * parameter.itemsize for parameter in made.model.parameters())
        model, optimizer, loader = team.prepare(made.model, optimizer, made.batches)
        looks = []
        for batch in loader:
            if team.step in (WARM + 1, WARM + counted + 1):
                looks.append(look(team))
            for texts in batch.shards:
                team.backward(made.loss(model, texts))
            optimizer.step()
            optimizer.zero_grad()
        digests = sorted(set(team.all_gather_object(digest(state_of(model, optimizer)))))
        (began_s, before), (ended_s, after) = looks
        sent = {name: (after[name] - before[name]) / counted for name in after if name in before}
        found: dict[str, Any] = {
            "host": socket.gethostname(),
            "processes": team.world_size,
            "digests": digests,
            "seconds a step": (ended_s - began_s) / counted,
            "bytes of the gradients": num_bytes,
            "bytes sent a step": {name: round(count) for name, count in sent.items() if count},
            "in units of the gradients": {name: round(count / num_bytes, 3) for name, count in sent.items() if count},
            "a ring of all ranks would send": round(2 * (team.world_size - 1) / team.world_size, 3),
        }
        if team.local_rank == 0:
            args.found.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
