"""A script that looks into the event log while it trains. Each function is one rank's script."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def log_and_evaluate(evaluate_in):
    """The events of steps and evaluations, as they are in the log when each step begins and at the
    end: their kinds, steps and names."""
    looks = []
    with lockstep.join(log_every=2, checkpoint_every="off") as team:
        data = TensorDataset(torch.ones(14, 1))
        model, loader = team.prepare(nn.Linear(1, 1), DataLoader(data, 2))

        def look():
            if team.is_main:
                events = map(json.loads, (team.run_dir / "events.jsonl").read_text().splitlines())
                logged = [each for each in events if each["event"] in ("step", "evaluate")]
                looks.append([(each["event"], each["step"], [*each["values"]]) for each in logged])

        for batch in loader:
            look()
            for (x,) in batch.shards:
                team.backward(model(x).mean())
            if team.step == evaluate_in:
                with team.evaluate(model, DataLoader(data, 14)) as evaluation:
                    for (x,) in evaluation.shards:
                        evaluation.add(mean=x.mean())
            team.log(loss=float(team.step))
    look()
    return looks


def leave_and_log():
    """The values in the event log by step, if the second step is left before a phase of it is
    complete."""
    with lockstep.join(log_every=1, checkpoint_every="off") as team:
        model, loader = team.prepare(nn.Linear(1, 1), DataLoader(TensorDataset(torch.ones(6, 1)), 2))
        for _ in range(2):
            for batch in loader:
                team.log(before=float(team.step))
                if team.step == 2 and loader.next_pass == 1:
                    break
                for (x,) in batch.shards:
                    team.backward(model(x).mean())
                team.log(loss=float(team.step))
    events = map(json.loads, (team.run_dir / "events.jsonl").read_text().splitlines())
    return [(each["step"], each["values"]) for each in events if each["event"] == "step"]
