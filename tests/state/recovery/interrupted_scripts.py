"""Training scripts of many kinds, each with the number of its steps: see
``test_interrupted_scripts``."""

import textwrap

HEAD = """
import random

import numpy as np
import torch
from striking import FEATURES, Samples, arm, digest, network, sample, samples, say_last_words, strike
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

import lockstep

def learn(model, optimizer, batch):
    for features, labels in batch.shards:
        loss = nn.functional.cross_entropy(model(features), labels)
        team.backward(loss)
        batch.add(loss=loss)
        strike(team, "shard")
    optimizer.step()
    optimizer.zero_grad()
    strike(team)
    return batch["loss"]
"""

BEGIN = """
team = lockstep.join()
arm(team)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""

SCRIPTS = {
    "range, with a tail": (
        15,
        BEGIN,
        """
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model, optimizer, schedule, batches = team.prepare(model, optimizer, schedule, samples())
        drawn = team.register("drawn", torch.zeros(()))
        for epoch in range(3):
            for batch in batches:
                learn(model, optimizer, batch)
            with team.evaluate(model, samples(20, shuffle=False)) as evaluation:
                for batch in evaluation:
                    for features, labels in batch.shards:
                        batch.add(accuracy=model(features).argmax(1) == labels)
            strike(team, "tail")
            schedule.step()
            drawn += torch.rand(()) + random.random()
        drawn += np.random.rand()
        say_last_words(team, model, optimizer, schedule, accuracy=evaluation["accuracy"], drawn=drawn.item())
        """,
    ),
    "numbers drawn between two passes of an epoch": (
        16,
        BEGIN,
        """
        model, optimizer, first, second = team.prepare(model, optimizer, samples(40, 8), samples(24, 8))
        for epoch in team.epochs(2):
            for batch in first:
                learn(model, optimizer, batch)
            offset = torch.rand(FEATURES) + random.random() + np.random.rand()
            for batch in second:
                for features, labels in batch.shards:
                    team.backward(nn.functional.cross_entropy(model(features + offset), labels))
                    strike(team, "shard")
                optimizer.step()
                optimizer.zero_grad()
                strike(team)
        say_last_words(team, model, optimizer)
        """,
    ),
    "a loop within the loop": (
        10,
        BEGIN,
        """
        made = torch.Generator().manual_seed(7)
        model, optimizer, outer, inner = team.prepare(
            model, optimizer, samples(37), samples(22, 8, generator=made)
        )
        for epoch in team.epochs(2):
            for batch in outer:
                learn(model, optimizer, batch)
                for other in inner:
                    for features, labels in other.shards:
                        loss = nn.functional.cross_entropy(model(features), labels)
                        team.backward(0.1 * loss)
                        other.add(loss=loss)
                        strike(team, "shard")
                    optimizer.step()
                    optimizer.zero_grad()
                strike(team)
        say_last_words(team, model, optimizer, averages=[outer.averages, inner.averages])
        """,
    ),
    "a second loader that goes round by itself": (
        15,
        BEGIN,
        """
        def endless(loader):
            while True:
                yield from loader

        second = samples(44, 8, generator=torch.Generator().manual_seed(8))
        model, optimizer, first, second = team.prepare(model, optimizer, samples(37), second)
        others = endless(second)
        for epoch in team.epochs(3):
            for batch in first:
                other = next(others)
                for (features, labels), (unlabelled, _) in zip(batch.shards, other.shards):
                    certain = model(unlabelled).softmax(1).square().sum(1).mean()
                    team.backward(nn.functional.cross_entropy(model(features), labels) - 0.1 * certain)
                    other.add(certain=certain)
                    strike(team, "shard")
                optimizer.step()
                optimizer.zero_grad()
                strike(team)
        say_last_words(team, model, optimizer, certain=other["certain"])
        """,
    ),
    "registered things": (
        15,
        BEGIN,
        """
        class Counter:
            def __init__(self):
                self.seen, self.last = 0, torch.zeros(2)
            def state_dict(self):
                return {"seen": self.seen, "last": self.last}
            def load_state_dict(self, state):
                self.seen, self.last = state["seen"], state["last"]

        model, optimizer, batches = team.prepare(model, optimizer, samples())
        mean = team.register("mean", torch.zeros(3))
        table = team.register("table", {"steps": 0, 7: (1, 2), "tensor": torch.zeros(2)})
        history = team.register("history", [])
        generator = team.register("generator", torch.Generator().manual_seed(1))
        numbers = team.register("numbers", np.random.default_rng(2))
        plain = team.register("plain", random.Random(3))
        counter = team.register("counter", Counter())
        for epoch in team.epochs(3):
            for batch in batches:
                learn(model, optimizer, batch)
                mean += torch.rand(3, generator=generator)
                table["steps"] += 1
                table["tensor"] = table["tensor"] * 0.5 + numbers.random()
                history.append((team.step, plain.random()))
                counter.seen += team.step
                counter.last = counter.last + mean[:2]
            history.append("tail")
            strike(team, "tail")
        say_last_words(
            team, model, {"mean": mean, "tensor": table["tensor"], "last": counter.last},
            steps=table["steps"], pair=table[7], history=history, seen=counter.seen, next=[numbers.random(), plain.random()],
        )
        """,
    ),
    "generators of samplers": (
        15,
        BEGIN,
        """
        own = RandomSampler(Samples(), replacement=True, num_samples=24, generator=torch.Generator().manual_seed(5))
        weighted = WeightedRandomSampler(torch.rand(40) + 0.1, 16, generator=torch.Generator().manual_seed(6))
        first = samples(shuffle=False, sampler=own)
        second = DataLoader(Samples(), batch_sampler=BatchSampler(weighted, 8, drop_last=False))
        model, optimizer, first, second = team.prepare(model, optimizer, first, second)
        for epoch in team.epochs(3):
            for batch in first:
                learn(model, optimizer, batch)
            for batch in second:
                learn(model, optimizer, batch)
        say_last_words(team, model)
        """,
    ),
    "two loops over epochs": (
        20,
        BEGIN,
        """
        fine = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        model, optimizer, fine, batches = team.prepare(model, optimizer, fine, samples())
        for epoch in team.epochs(2):
            for batch in batches:
                learn(model, optimizer, batch)
        with torch.no_grad():
            for parameter in team.unwrap(model)[0].parameters():
                parameter += 0.1 * torch.randn(parameter.shape)
                parameter.requires_grad_(False)
        strike(team, "tail")
        for epoch in team.epochs(2):
            for batch in batches:
                learn(model, fine, batch)
            strike(team, "tail")
        say_last_words(team, model, optimizer, fine)
        """,
    ),
    "prepared later": (
        20,
        BEGIN,
        """
        model, optimizer, batches = team.prepare(model, optimizer, samples())
        for epoch in team.epochs(2):
            for batch in batches:
                learn(model, optimizer, batch)
            strike(team, "tail")
        student = nn.Linear(FEATURES, 2)
        of_student = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
        student, of_student, others = team.prepare(student, of_student, samples(24, 4))
        for epoch in team.epochs(2):
            for batch in others:
                for features, labels in batch.shards:
                    with torch.no_grad():
                        taught = model(features).softmax(1)
                    team.backward(nn.functional.cross_entropy(student(features), taught))
                    strike(team, "shard")
                of_student.step()
                of_student.zero_grad()
                strike(team)
                if team.step in (15, 20):
                    break
            strike(team, "tail")
        say_last_words(team, model, student, optimizer, of_student)
        """,
    ),
    "the best weights": (
        15,
        BEGIN,
        """
        model, optimizer, batches = team.prepare(model, optimizer, samples())
        for epoch in team.epochs(3):
            model.train()
            for batch in batches:
                learn(model, optimizer, batch)
            with team.evaluate(model, samples(20, shuffle=False)) as evaluation:
                for features, labels in evaluation.shards:
                    evaluation.add(loss=nn.functional.cross_entropy(model(features), labels, reduction="none"))
            strike(team, "tail")
            team.best(abs(evaluation["loss"] - 0.7), mode="min")
            strike(team, "tail")
        best, run_dir = (team.best_metric, team.best_epoch), team.run_dir
        team.close()
        say_last_words(team, model, lockstep.load_weights(run_dir / "best"), best=best)
        """,
    ),
}


def source_of(name):
    _, begin, rest = SCRIPTS[name]
    return HEAD + textwrap.dedent(begin) + textwrap.dedent(rest)


def steps_of(name):
    return SCRIPTS[name][0]


# Those that ask for a number of epochs, with the argument of the script.
LONGER = {
    name: HEAD + "import sys" + textwrap.dedent(BEGIN) + textwrap.dedent(rest)
    for name, rest in {
        "for epoch in range, with a tail": """
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
            model, optimizer, schedule, batches = team.prepare(model, optimizer, schedule, samples())
            tails = team.register("tails", torch.zeros(()))
            for epoch in range(int(sys.argv[1])):
                for batch in batches:
                    learn(model, optimizer, batch)
                schedule.step()
                tails += 1
            say_last_words(team, model, optimizer, tails=tails.item())
            """,
        "for epoch in team.epochs": """
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
            model, optimizer, schedule, batches = team.prepare(model, optimizer, schedule, samples())
            tails = team.register("tails", torch.zeros(()))
            for epoch in team.epochs(int(sys.argv[1])):
                for batch in batches:
                    learn(model, optimizer, batch)
                schedule.step()
                tails += 1
            with team.evaluate(model, samples(20, shuffle=False)) as evaluation:
                for batch in evaluation:
                    for features, labels in batch.shards:
                        batch.add(accuracy=model(features).argmax(1) == labels)
            say_last_words(team, model, optimizer, tails=tails.item(), accuracy=evaluation["accuracy"])
            """,
    }.items()
}

# Those with something after the loop, and after which steps that is.
TAILS = {
    "range, with a tail": (5, 10, 15),
    "registered things": (5, 10, 15),
    "two loops over epochs": (10, 15, 20),
    "the best weights": (5, 10, 15),
}
