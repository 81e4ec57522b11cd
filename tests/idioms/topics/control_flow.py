"""Control flow."""

import copy
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from topics.promises import differs, equal, refused
from topics.shared import dataset, gradients, make, mlp, prepared, step, train, update


@equal(found="LS202")
def enumerate_and_break(team):
    """`enumerate(loader)` and `break`."""
    model, optimizer, loader = prepared(team)
    for _ in team.epochs(3):
        for number, batch in enumerate(loader):
            step(team, model, optimizer, batch)
            if number == 1:
                break
    return model, team.step


@equal(found="LS202")
def break_before_a_phase(team):
    """`break` before the shards (no step)."""
    model, optimizer, loader = prepared(team)
    for _ in team.epochs(2):
        for number, batch in enumerate(loader):
            if number == 2:
                break
            step(team, model, optimizer, batch)
    return model, team.step


@equal(found="LS201")
def early_stopping_by_metric(team):
    """Early stopping by accuracy."""
    model, optimizer, loader = prepared(team)
    test = dataset(13)
    best, bad, history = 0.0, 0, []
    for _ in team.epochs(4):
        train(team, model, optimizer, loader)
        with team.evaluate(model, DataLoader(test, 5)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(accuracy=model(inputs).argmax(dim=1) == targets)
        history.append(evaluation["accuracy"])
        best, bad = (history[-1], 0) if history[-1] > best else (best, bad + 1)
        if bad == 1:
            break
    return model, history


@equal(found="LS201")
def batch_size_by_accumulation(team):
    """Growing accumulation."""
    model, optimizer, loader = prepared(team)
    waiting = 0
    for epoch in team.epochs(3):
        for batch in loader:
            gradients(team, model, batch)
            waiting += 1
            if waiting > epoch:
                for p in model.parameters():
                    p.grad /= waiting
                update(optimizer)
                waiting = 0
    return model


@equal(plain=True)
def step_skipped_by_condition(team):
    """A step skipped for a high loss."""
    model, optimizer, loader = team.prepare(*make())
    for batch in loader:
        gradients(team, model, batch)
        if batch["loss"] < 1.1:
            optimizer.step()
        optimizer.zero_grad()
    return model


@equal(found="LS202")
def steps_left_out(team):
    """`continue` before the shards."""
    model, optimizer, loader = prepared(team)
    for _ in team.epochs(2):
        for number, batch in enumerate(loader):
            if number == 1:
                continue
            step(team, model, optimizer, batch)
    return model, team.step


@equal()
def error_caught_around_a_step(team):
    """`try`/`except` around a step."""
    model, optimizer, loader = prepared(team)
    failed = []
    for batch in loader:
        gradients(team, model, batch)
        try:
            if team.step == 2:
                raise RuntimeError("CUDA out of memory")
            optimizer.step()
        except RuntimeError as error:
            failed.append((team.step, str(error)))
        optimizer.zero_grad()
    return model, failed


@refused(code="inside-shards")
def error_caught_around_the_pass(team):
    """`try`/`except` around the pass."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        try:
            for inputs, targets in batch.shards:
                if team.step == 2:
                    raise RuntimeError("CUDA out of memory")
                team.backward(functional.cross_entropy(model(inputs), targets))
        except RuntimeError:
            optimizer.zero_grad()
            continue
        update(optimizer)


@equal()
def shards_left_out(team):
    """`continue` inside (adds nothing to the sum)."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            if (targets == 0).all() or inputs[0, 0] > 1.0:
                continue
            team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)
    return model


@equal()
def shards_of_weight_0(team):
    """`weight=0` (a mean over the others)."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss, weight=0 if inputs[0, 0] > 1.5 else len(inputs))
        update(optimizer)
    return model


@equal()
def error_caught_in_a_shard(team):
    """`try`/`except`/`continue` inside."""
    model, optimizer, loader = prepared(team)
    failed = 0
    for batch in loader:
        mine = 0
        for inputs, targets in batch.shards:
            try:
                if inputs[0, 0] > 1.0:
                    raise RuntimeError("out of memory")
                team.backward(functional.cross_entropy(model(inputs), targets))
            except RuntimeError:
                mine += 1
                continue
        failed += int(team.all_reduce(torch.tensor(mine)))
        update(optimizer)
    return model, failed


def fail(gradient):
    raise RuntimeError("out of memory")


@refused(code="backward-interrupted")
def error_caught_in_a_backward_pass(team):
    """An error caught in `backward`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            hidden = team.unwrap(model)[:2](inputs)
            if inputs[0, 0] > 1.0:
                hidden.register_hook(fail)
            try:
                team.backward(functional.cross_entropy(team.unwrap(model)[2](hidden), targets))
            except RuntimeError:
                continue
        update(optimizer)
    return model


@equal(found="LS201")
def rolled_back(team):
    """Rollback when the loss jumps."""
    model = mlp()
    model, optimizer, loader = prepared(team, model, torch.optim.Adam(model.parameters(), lr=0.5))
    good, last, jumps = None, float("inf"), []
    for _ in team.epochs(3):
        for batch in loader:
            gradients(team, model, batch)
            if batch["loss"] > 1.2 * last and good is not None:
                model.load_state_dict(good[0])
                optimizer.load_state_dict(good[1])
                optimizer.zero_grad()
                jumps.append(team.step)
                continue
            good, last = copy.deepcopy((model.state_dict(), optimizer.state_dict())), batch["loss"]
            update(optimizer)
    return model, optimizer, jumps


@equal()
def time_limit(team):
    """A time limit by `team.any`."""
    model, optimizer, loader = prepared(team)
    end = time.monotonic() + 3600
    for batch in loader:
        step(team, model, optimizer, batch)
        if team.any(time.monotonic() > end):
            break
    return model, team.step


@equal()
def registered_counters(team):
    """`team.register`."""
    model, optimizer, loader = prepared(team)
    counts = team.register("counts", {"samples": 0, "loss": 0.0})
    mean = team.register("mean", torch.zeros(6))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss, **{f"x{i}": inputs[:, i].mean() for i in range(6)})
        update(optimizer)
        counts["samples"] += batch.num_samples
        counts["loss"] += batch["loss"]
        mean.lerp_(torch.tensor([batch[f"x{i}"] for i in range(6)]), 0.1)
    return model, counts, mean


@refused(code="ranks-diverged", alone=False)
def drawn_on_rank_0(team):
    """Random numbers drawn on rank 0 only."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        gradients(team, model, batch)
        if team.is_main:
            torch.randn(3)
        for p in model.parameters():
            p.grad += 0.01 * torch.randn_like(p)
        update(optimizer)
    return model


@refused(code="ranks-diverged", alone=False)
def written_on_rank_0(team):
    """Weights changed on rank 0 only."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        step(team, model, optimizer, batch)
        if team.is_main:
            model[0].weight.data.clamp_(-0.1, 0.1)
    return model


@equal()
def threads_set_by_the_script(team):
    """`torch.set_num_threads`."""
    model, optimizer, loader = prepared(team)
    torch.set_num_threads(1)
    train(team, model, optimizer, loader)
    return model, torch.get_num_threads()


@differs("It counts the shards of this process from 0, and is not the number of the shard.", found="LS107")
def shards_numbered(team):
    """`enumerate(batch.shards)`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for number, (inputs, targets) in enumerate(batch.shards):
            team.backward((1.0 + number) * functional.cross_entropy(model(inputs), targets))
        update(optimizer)
    return model
