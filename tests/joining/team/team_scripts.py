"""Scripts that look at what the team does. Each function is one rank's script."""

import inspect
import io
import json
import os
import sys
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from codes import refusal_of
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._world.comm.dtensors import full_tensor

PACKAGE = f"{Path(lockstep.__file__).parent}{os.sep}"


def numbers(length):
    """Sample i is the number i."""
    return TensorDataset(torch.arange(float(length)).unsqueeze(1))


def linear(value=1.0):
    """A model of one weight: its gradient for inputs x and the loss ``model(x).mean()`` is the mean
    of x."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def watch_steps(length, batch_size, epochs, drop_last=False):
    """What each step and its shards saw of the position, and what there was between and after the
    loops."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), batch_size, drop_last=drop_last))
        before, steps, between = (team.step, team.epoch), [], []
        for epoch in team.epochs(epochs):
            for batch in loader:
                shards = []
                for (inputs,) in batch.shards:
                    team.backward(model(inputs).mean())
                    shards.append((team.epoch, team.step, inputs.flatten().tolist()))
                steps.append((epoch, team.epoch, team.step, batch.num_samples, shards))
            between.append(team.step)
        return {"before": before, "steps": steps, "between": between, "len": len(loader), "after": team.step}


def gradients_of_phases(zero_at):
    """The gradient in the shards and behind them, and the weight after every step, of which each
    has two phases."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(8), 4))
        inside, behind, weights = [], [], []

        def gradient():
            try:
                return None if model.weight.grad is None else model.weight.grad.item()
            except lockstep.UsageError:  # once a shard's backward pass has run
                return None

        for batch in loader:
            if zero_at == "first":
                optimizer.zero_grad()
            for _ in range(2):
                for (inputs,) in batch.shards:
                    inside.append(gradient())
                    team.backward(model(inputs).mean())
                    inside.append(gradient())
                behind.append(gradient())
                if zero_at == "between":
                    optimizer.zero_grad()
            if zero_at == "between":
                continue
            optimizer.step()
            weights.append(model.weight.item())
            if zero_at == "last":
                optimizer.zero_grad(set_to_none=False)
            if zero_at == "model":
                model.zero_grad()
        return inside, behind, weights


def made_of_own_numbers():
    """The numbers of a model and of its average, which each rank has filled with other
    numbers."""
    with lockstep.join() as team:
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        for tensor in model.state_dict().values():
            tensor.fill_(7 + team.rank)
        average = AveragedModel(model)
        parts = team.prepare(model, average)
        tensors = [tensor for part in parts for tensor in (*part.parameters(), *part.buffers())]
        return [number for tensor in tensors for number in full_tensor(tensor.detach()).flatten().tolist()]


def epochs_again(left_at):
    """The epochs of three loops over one ``team.epochs(4)``, the first of which is left."""
    with lockstep.join() as team:
        epochs, first = team.epochs(4), []
        for epoch in epochs:
            first.append(epoch)
            if epoch == left_at:
                break
        return [first, list(epochs), list(epochs)]


SCHEDULES = {
    "step": lambda optimizer: StepLR(optimizer, 3, 0.5),
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.3, total_steps=6),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [LambdaLR(optimizer, lambda step: step + 1), StepLR(optimizer, 1, 0.5)], [2]
    ),
}


def rates_by_step(name, made):
    """The learning rate that each of six steps was taken with, in two epochs of three."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, loader = team.prepare(model, DataLoader(numbers(12), 4))
        if made == "before":
            schedule = SCHEDULES[name](optimizer)
            schedule, optimizer = team.prepare(schedule, optimizer)
        else:
            optimizer = team.prepare(optimizer)
            schedule = team.prepare(SCHEDULES[name](optimizer))
        rates = []
        for _ in team.epochs(2):
            for batch in loader:
                rates.append(optimizer.param_groups[0]["lr"])
                for (inputs,) in batch.shards:
                    team.backward(model(inputs).mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        return rates


def plain_rates(name):
    """The same of the plain loop."""
    optimizer = torch.optim.SGD(linear().parameters(), lr=0.1)
    schedule = SCHEDULES[name](optimizer)
    rates = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


def rates_by_epoch():
    """Two schedules stepped outside of the loop: by epoch, and by a metric that does not
    improve."""
    with lockstep.join() as team:
        model = linear()
        optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for _ in range(2)]
        by_epoch, by_metric = StepLR(optimizers[0], 1, 0.5), ReduceLROnPlateau(optimizers[1], patience=0, factor=0.1)
        model, *optimizers, by_epoch, by_metric, loader = team.prepare(
            model, *optimizers, by_epoch, by_metric, DataLoader(numbers(8), 4)
        )
        rates = []
        for _ in team.epochs(3):
            rates.append([optimizer.param_groups[0]["lr"] for optimizer in optimizers])
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(0 * model(inputs).mean())
                for optimizer in optimizers:
                    optimizer.step()
            by_epoch.step()
            by_metric.step(1.0)
        return rates


def plain_states():
    """State dicts after a step, of prepared and of plain objects: keys, and whether they load into
    plain objects."""
    with lockstep.join() as team:
        model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.Adam(model.parameters())
        schedule = StepLR(optimizer, 1)
        prepared, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, DataLoader(numbers(16), 8))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(prepared(inputs).square().mean())
            optimizer.step()
            schedule.step()
        saved = io.BytesIO()
        torch.save([prepared.state_dict(), optimizer.state_dict(), schedule.state_dict()], saved)
        saved.seek(0)
        states = torch.load(saved, weights_only=True)
        plain = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
        plain_optimizer = torch.optim.Adam(plain.parameters())
        plain_schedule = StepLR(plain_optimizer, 1)
        assert states[2].keys() == plain_schedule.state_dict().keys()
        for thing, state in zip((plain, plain_optimizer, plain_schedule), states, strict=True):
            thing.load_state_dict(state)
        equal = all(torch.equal(a, b) for a, b in zip(prepared.parameters(), plain.parameters(), strict=True))
        return list(states[0]) == list(plain.state_dict()), equal, plain_schedule.last_epoch


def any_in_every_step(length, truths):
    """What ``any`` answered in each step, before its shards and behind them. ``truths``: (rank,
    step) where it holds."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), 8))
        answers = []
        for batch in loader:
            first = team.any((team.rank, team.step) in truths)
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            answers.append((team.step, first, team.any((team.rank, team.step) in truths), team.any(torch.tensor(False))))
        return answers, team.any(team.rank == 0), team.any(torch.tensor(False))


def stop_together():
    """Each rank leaves the loop when any rank wants to."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(40), 4))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            if team.any(team.rank == team.world_size - 1 and team.step == 3):
                break
        return team.step


def leave(when):
    """``team.step`` and the weight after each of three passes that are left in their second
    step."""
    with lockstep.join() as team:
        model = linear(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(numbers(5), 1))
        found = []
        for _ in team.epochs(3):
            for number, batch in enumerate(loader):
                if when == "before the shards" and number == 1:
                    break
                optimizer.zero_grad()
                for (inputs,) in batch.shards:
                    team.backward(model(inputs * 0 - 1).mean())
                if when == "before the update" and number == 1:
                    break
                optimizer.step()
                if when == "after the update" and number == 1:
                    break
            found.append((team.step, model.weight.item()))
        return found


def average_values(length, batch_size):
    """The epochs, weights and values of this rank's shards, and the averages of each epoch."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), batch_size))
        added, averages = [], []
        for epoch in team.epochs(2):
            for batch in loader:
                for (inputs,) in batch.shards:
                    weight, loss = float(inputs.sum()) + 0.1, float(inputs.mean()) / 7 + epoch
                    team.backward(model(inputs).mean(), weight=weight)
                    batch.add(loss=loss)
                    batch.add(num=len(inputs), reduction="sum")
                    added.append((epoch, weight, loss))
            averages.append(dict(loader.averages))
        return added, averages


def names_by_step(num_steps):
    """The values of a training with a name for each step, one for each of seven tasks and one that
    comes seldom; and the lengths of the rows that the ranks have exchanged."""
    with lockstep.join(checkpoint_every="off") as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(4 * num_steps), 4))
        sync, values, lengths = team._loop.phases.parts.strategy, [], []
        begin = sync.open

        def watched(plan, phase):
            sums = begin(plan, phase)
            gather = sums.gather

            def measured(row):
                lengths.append(len(row))
                return gather(row)

            sums.gather = measured
            return sums

        sync.open = watched
        for batch in loader:
            step = team.step
            names = [f"loss of step {step}", f"loss of task {step % 7}", "loss", *(["seldom"] if step % 60 == 0 else [])]
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
                batch.add(**dict.fromkeys(names, inputs.mean()))
            values.append([batch[name] for name in names])
        return values, lengths


def refused_in_the_shards():
    """What each call that belongs outside of the shards said in the second step, and that all goes
    on as if unasked."""
    with lockstep.join() as team:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = StepLR(optimizer, 1)
        average = AveragedModel(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        test_loader = DataLoader(numbers(4), 4)
        model, optimizer, schedule, average, scaler, loader, beside = team.prepare(
            model, optimizer, schedule, average, scaler, DataLoader(numbers(12), 4), DataLoader(numbers(12), 4)
        )
        state, kept = team.state(best=1.0), team.per_shard("kept", 1.0)

        def enter(context):
            with context:
                pass

        one = torch.ones(1)
        calls = [
            lambda: optimizer.step(),
            lambda: optimizer.zero_grad(),
            lambda: model.zero_grad(),
            lambda: average.update_parameters(model),
            lambda: scaler.unscale_(optimizer),
            lambda: scaler.step(optimizer),
            lambda: scaler.update(),
            lambda: team.clip_grad_norm_(model.parameters(), 1.0),
            lambda: team.all_reduce(one),
            lambda: team.reduce(one),
            lambda: team.broadcast(one),
            lambda: team.broadcast_object(1),
            lambda: team.broadcast_plain(1),
            lambda: team.all_gather(one),
            lambda: team.all_gather_object(1),
            lambda: team.all_gather_plain(1),
            lambda: team.all_gather_rows([one]),
            lambda: team.gather(one),
            lambda: team.scatter([one] * team.world_size, one),
            lambda: team.reduce_scatter(torch.ones(team.world_size)),
            lambda: team.barrier(),
            lambda: team.any(True),
            lambda: team.new_group([0]),
            lambda: enter(team.evaluate(model, test_loader)),
            lambda: team.best(1.0),
            lambda: team.save({}, team.run_dir / "never.pt"),
            lambda: enter(team.main_first()),
            lambda: team.log(value=1.0),
            lambda: setattr(state, "best", 2.0),
            lambda: kept.reset(),
            lambda: next(iter(batch.shards)),
            lambda: batch["value"],
            lambda: batch.shared(),
            lambda: next(iter(beside)),
        ]
        said = []
        for batch in loader:
            for (inputs,) in batch.shards:
                if team.step == 2:
                    said = list(map(refusal_of, calls))
                team.backward(scaler.scale(model(inputs).mean()))
                if team.step == 2:
                    assert said == list(map(refusal_of, calls))
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            average.update_parameters(model)
            optimizer.zero_grad()
        names = [inspect.getsource(call).strip(" ,\n").partition("lambda: ")[2] for call in calls]
        return dict(zip(names, said, strict=True)), (
            model.weight.item(),
            int(average.n_averaged),
            schedule.last_epoch,
            team.step,
        )


def another_loader_in_the_shards():
    """What is said, in its second pass, of the next batch of another loader."""
    with lockstep.join() as team:
        loader, beside = team.prepare(DataLoader(numbers(12), 4), DataLoader(numbers(12), 4))
        for _ in range(2):
            for batch, _ in zip(loader, following := iter(beside), strict=True):
                for _ in batch.shards:
                    if team.step == 5:
                        return refusal_of(lambda: next(following)), refusal_of(lambda: next(iter(beside)))
    return None


def collective_in_an_evaluation(num_batches):
    """What is said of a collective of ``torch.distributed`` in the shards of an evaluation, and
    how many were called."""
    with lockstep.join() as team:
        model, _ = team.prepare(linear(), DataLoader(numbers(12), 4))
        sums = []

        def evaluate():
            with team.evaluate(model, DataLoader(numbers(2 * num_batches), 2)) as evaluation:
                for batch in evaluation:
                    for (inputs,) in batch.shards:
                        sums.append(model(inputs).sum())
                        dist.all_reduce(sums[-1])

        return refusal_of(evaluate), len(sums)


LEFT_EARLY = ["pass", "collective", "clipping"]


def left_early(then):
    """What is said when the shards of a step are left early, and the script goes on like this."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(12), 4))
        try:
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(model(inputs).mean())
                    batch.add(loss=1.0)
                    break
                match then:
                    case "collective":
                        team.barrier()
                    case "clipping":
                        team.clip_grad_norm_(model.parameters(), 1.0)
                    case "pass":
                        break
            if then == "pass":
                for _ in loader:
                    pass
        except lockstep.LockstepError as error:
            return error.code


def go_on_after_leaving(width, shards):
    """The gradients, and what was said, of a script that makes light of an error in the last shard
    of its second step."""
    with lockstep.join() as team:
        model, loader = team.prepare(nn.Linear(width, 400), DataLoader(TensorDataset(torch.ones(24, width)), 4))
        parameters = list(model.parameters())
        found, num_failed = [], 0
        for _ in range(4):
            try:
                for batch in loader:
                    for number, (inputs,) in enumerate(batch.shards, 1):
                        team.backward(model(inputs).sum(dim=1).mean())
                        if team.step == 2 and num_failed == 0 and number == shards // team.world_size:
                            num_failed += 1
                            raise ValueError("after the backward pass")
                    found.append([parameter.grad.unique().tolist() for parameter in parameters])
                    for parameter in parameters:
                        parameter.grad = None
                break
            except (ValueError, lockstep.LockstepError) as error:
                found.append(type(error).__name__)
        return found


def states_of_shards(start, reset_after=None):
    """A state for each shard: what each shard saw of its own, by shard's first number."""
    with lockstep.join() as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(24), 8))
        kept = team.per_shard("kept", start)
        seen = []
        for batch in loader:
            for (inputs,) in batch.shards:
                seen.append((team.step, inputs[0].item(), list(kept.value)))
                kept.value.append(inputs[0].item())
                team.backward(model(inputs).mean())
            if team.step == reset_after:
                kept.reset()
        return seen, start


def one_tensor_for_all_shards():
    """What each shard finds of the step before, by step and the shard's first number."""
    with lockstep.join() as team:
        _, loader = team.prepare(linear(), DataLoader(numbers(24), 8))
        kept, reused, found = team.per_shard("kept", torch.zeros(1)), torch.zeros(1), {}
        for batch in loader:
            for (inputs,) in batch.shards:
                found[team.step, inputs[0].item()] = kept.value.item()
                kept.value = reused.copy_(inputs[0])
        return found


def keep_a_function_for_each_shard(at_start):
    """The error's code and text, and the shards' numbers for which the next line ran."""
    beyond = []
    with lockstep.join() as team:
        _, loader = team.prepare(linear(), DataLoader(numbers(8), 8))
        try:
            kept = team.per_shard("kept", print if at_start else None)
            for batch in loader:
                for (inputs,) in batch.shards:
                    kept.value = {"then": print}
                    beyond.append(inputs[0].item())
        except lockstep.ConfigError as error:
            return error.code, str(error), beyond


def first_and_then(order):
    with lockstep.join() as team:
        with team.main_first():
            if team.is_main:
                time.sleep(0.1)
            with Path(order).open("a") as file:
                file.write(f"{team.rank}\n")
        team.barrier()
        return Path(order).read_text().split()


def fail_first():
    """Rank 0 fails in ``main_first``. What each rank was told."""
    with lockstep.join() as team:
        try:
            with team.main_first():
                raise OSError(f"no download on rank {team.rank}")
        except (OSError, lockstep.LockstepError) as error:
            return type(error).__name__, str(error)


def log_numbers(length, batch_size, log_every):
    """Log each step's mean of its numbers, a value in some steps only, and one after the loop."""
    with lockstep.join(log_every=log_every) as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(length), batch_size))
        for epoch in team.epochs(2):
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(model(inputs).mean())
                    batch.add(mean=inputs.mean())
                team.log(mean=batch["mean"], odd=1.0 if team.step % 2 else None)
            team.log(epoch=float(epoch))
        run_dir = team.run_dir
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()] if team.is_main else None


def groups_and_threads(times):
    """Join and leave several times; what is left each time."""
    found = []
    for _ in range(times):
        with lockstep.join() as team:
            total = team.all_reduce(torch.ones(())).item()
            directory = team.run_dir
        lost = "open"
        try:
            team.barrier()
        except lockstep.LockstepError as error:
            lost = error.code
        sockets = [s for s in psutil.Process().net_connections("inet") if s.status == psutil.CONN_LISTEN]
        found.append((total, dist.is_initialized(), lost, len(sockets), str(directory)))
    return found


def train_to_the_end(shards=None, precision="32-true"):
    """A small training with everything in it, over ready batches. The weights, exactly."""
    team = lockstep.join(shards=shards, precision=precision)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 12)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, ready_batches())
    norms = []
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(nn.functional.cross_entropy(model(inputs), targets))
            norms.append(team.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}, [float(n) for n in norms]


def train_plainly():
    """The same, written by hand for one process."""
    torch.set_num_threads(1)  # as ``crew`` asks of the team: the number of threads changes bits
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = CosineAnnealingLR(optimizer, 12)
    norms = []
    for _ in range(2):
        for inputs, targets in ready_batches():
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}, [float(n) for n in norms]


def ready_batches():
    generator = torch.Generator().manual_seed(5)
    sizes = (16, 16, 16, 8)
    return [(torch.randn(n, 4, generator=generator), torch.randint(0, 2, (n,), generator=generator)) for n in sizes]


def files_of_a_step():
    """The files of lockstep whose functions a step calls: of the steps in which nothing is due, as
    in most of a run."""
    steps = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            steps[-1].add(code.co_filename.removeprefix(PACKAGE))

    with lockstep.join() as team:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = TensorDataset(torch.ones(60 * 8, 2), torch.ones(60 * 8, 1))
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size=8))
        for batch in loader:
            for x, y in batch.shards:
                team.backward(torch.nn.functional.mse_loss(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            steps.append(set())
            sys.setprofile(note if team.step >= 34 else None)
        sys.setprofile(None)
    return min(filter(None, steps[:-1]), key=len)  # the last one has the end of the pass


def save_each_step():
    """What the saver still remembers of the checkpoints that it has written, on this rank."""
    with lockstep.join(checkpoint_every=1) as team:
        model, loader = team.prepare(linear(), DataLoader(numbers(24), 4))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
        saver = team._engine.saver
    return len(saver._pauses_s)
