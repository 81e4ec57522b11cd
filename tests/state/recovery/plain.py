"""A plain training script, to be disturbed and resumed by scripts that differ: ``plain.py
[NAME=VALUE ...]``."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from striking import arm, network, samples, say_last_words, strike, wait_for_checkpoints
from switches import switch
from torch import nn

import lockstep

ASKED = {
    "hidden": 8,
    "optimizer": "AdamW",
    "lr": 0.01,
    "samples": 40,
    "batch": 8,
    "epochs": 3,
    "switch": "",
    "script_seed": 0,  # set after join()
    "schedule": 1,
    "step_s": 0.0,
    "log": 0,
    "pause": 0,  # in this step, once a checkpoint is there, until a file "enough" is
}
for argument in sys.argv[1:]:
    name, _, value = argument.partition("=")
    ASKED[name] = type(ASKED[name])(value)

if ASKED["switch"]:
    switch(ASKED["switch"])

team = lockstep.join()
arm(team)
if ASKED["script_seed"]:
    torch.manual_seed(ASKED["script_seed"])
model = network(ASKED["hidden"])
optimizer = getattr(torch.optim, ASKED["optimizer"])(model.parameters(), lr=ASKED["lr"])
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
model, optimizer, batches = team.prepare(model, optimizer, samples(ASKED["samples"], ASKED["batch"]))
if ASKED["schedule"]:
    schedule = team.prepare(schedule)
rates = []
strike(team, "start")


def say(name):
    unfinished = Path(f".{name}-{team.rank}")
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(f"{name}-{team.rank}")


def pause():
    wait_for_checkpoints(team, 1)
    say("paused")
    while not Path("enough").exists():
        time.sleep(0.01)


for _epoch in team.epochs(ASKED["epochs"]):
    model.train()
    for batch in batches:
        for features, labels in batch.shards:
            loss = nn.functional.cross_entropy(model(features), labels)
            team.backward(loss)
            if ASKED["log"]:
                batch.add(loss=loss)
            strike(team, "shard")
            time.sleep(ASKED["step_s"])
        if ASKED["log"]:
            team.log(loss=batch["loss"])
        optimizer.step()
        if ASKED["schedule"]:
            schedule.step()
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"])
        strike(team)
        if ASKED["pause"] == team.step:
            pause()
        if ASKED["pause"] + 1 == team.step:
            say("went-on")
    strike(team, "tail")

strike(team, "end")

say_last_words(team, model)
team.print("rates", json.dumps(rates))
