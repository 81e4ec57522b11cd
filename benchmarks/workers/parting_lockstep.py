"""A lockstep script that one rank leaves in another way than the others: ``parting_lockstep.py WAY
RANK``."""

import sys
import time

import torch
from faults.moments import AT_STEP, shows

import lockstep


def train(team: lockstep.Team, way: str, culprit: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4800, 8)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    held_out = torch.utils.data.DataLoader(data, batch_size=16)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    end = time.monotonic() + (3 if culprit else 60)
    for step, batch in enumerate(loader, 1):
        try:
            for x, y in batch.shards:
                time.sleep(0.02)
                loss = (model(x) - y).square().mean()
                team.backward(loss)
                batch.add(loss=loss)
            is_now = culprit and step == AT_STEP
            own_loss = 0.0 if is_now else loss.item() + 1.0
            if is_now:
                shows()
            if way == "skip_update" and is_now:
                continue
            optimizer.step()
            if way == "catch_error" and is_now:
                raise ValueError("no picture of step 30")
        except ValueError:
            break
        optimizer.zero_grad()
        if way == "exit_in_loop" and is_now:
            sys.exit(0)
        if way in ("break_before_evaluation", "break_before_save") and is_now:
            break
        if way == "stop_at_own_loss" and own_loss < 0.5:
            break
        if way == "return_early" and is_now:
            return
        if way == "stop_by_own_clock" and time.monotonic() > end:
            shows()
            break
    if way == "break_before_save":
        team.save(model.state_dict(), "model.pt")
    if way in ("break_before_evaluation", "catch_error"):
        with team.evaluate(model, held_out) as evaluation:
            for x, y in evaluation.shards:
                evaluation.add(loss=(model(x) - y).square().mean())


if __name__ == "__main__":
    team = lockstep.join(timeout_s=40.0)
    train(team, sys.argv[1], culprit=team.rank == int(sys.argv[2]))
