"""Evaluation and saving."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from topics.promises import equal, refused
from topics.shared import dataset, mlp, prepared, step, train


@equal()
def evaluation_every_k_steps(team):
    """Evaluation every second step."""
    model, optimizer, loader = prepared(team)
    test = dataset(13)
    found = []
    for batch in loader:
        step(team, model, optimizer, batch)
        if team.step % 2 == 0:
            with team.evaluate(model, DataLoader(test, 5)) as evaluation:
                for batch in evaluation:
                    for inputs, targets in batch.shards:
                        logits = model(inputs)
                        batch.add(loss=functional.cross_entropy(logits, targets), right=logits.argmax(dim=1) == targets)
            found.append((evaluation["loss"], evaluation["right"]))
    return model, found


@equal()
def evaluation_left_early(team):
    """An evaluation left after three batches, counted by `enumerate`."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    with team.evaluate(model, DataLoader(data, 3)) as evaluation:
        for number, batch in enumerate(evaluation):
            if number == 3:
                break
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(model(inputs), targets))
    return model, number, evaluation["loss"]


@equal()
def evaluation_in_part(team):
    """A random half of an evaluation's batches."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    with team.evaluate(model, DataLoader(data, 3)) as evaluation:
        for batch in evaluation:
            if torch.rand(()) < 0.5:
                continue
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(model(inputs), targets))
    return model, evaluation["loss"]


class Collected(list):
    update = list.append


@equal()
def predictions_collected(team):
    """Predictions collected by `batch.update` into a list."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    train(team, model, optimizer, loader)
    predictions = Collected()
    with team.evaluate(model, DataLoader(data, 3), metrics=[predictions]) as evaluation:
        for batch in evaluation:
            for inputs, _ in batch.shards:
                batch.update(predictions, model(inputs))
    return model, torch.cat(predictions)


@equal()
def evaluation_by_hand(team):
    """A plain DataLoader for evaluation."""
    model, optimizer, loader = prepared(team)
    test = DataLoader(dataset(13), 5)
    losses = []
    for _ in team.epochs(2):
        train(team, model, optimizer, loader)
        model.eval()
        with torch.no_grad():
            losses += [functional.cross_entropy(model(inputs), targets).item() for inputs, targets in test]
        model.train()
    return model, losses


@refused(code="loader-without-gradients")
def validation_with_a_prepared_loader(team):
    """A prepared loader under `no_grad`."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = dataset()
    model, optimizer, loader, test = team.prepare(model, optimizer, DataLoader(data, 10), DataLoader(data, 5))
    train(team, model, optimizer, loader)
    with torch.no_grad():
        for batch in test:
            for inputs, targets in batch.shards:
                batch.add(loss=functional.cross_entropy(model(inputs), targets))


@equal()
def best_kept_by_team(team):
    """`team.best`."""
    model, data = mlp(), dataset()
    model, optimizer, loader = prepared(team, model, data=data)
    kept = []
    for epoch in team.epochs(9):
        train(team, model, optimizer, loader)
        with team.evaluate(model, DataLoader(data, 5)) as evaluation:
            for inputs, targets in evaluation.shards:
                evaluation.add(accuracy=model(inputs).argmax(dim=1) == targets)
        kept.append((team.best(evaluation["accuracy"]), team.best_metric, team.best_epoch))
        if epoch - team.best_epoch == 2:
            break
    return model, kept
