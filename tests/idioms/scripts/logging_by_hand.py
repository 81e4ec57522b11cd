"""`logging` and CSV on rank 0."""

import logging

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    logger = logging.getLogger("training")
    table = (team.run_dir / "losses.csv").open("w") if team.is_main else None
    for epoch in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                loss = functional.cross_entropy(model(inputs), targets)
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if table is not None:
                print(team.step, batch["loss"], sep=",", file=table)
        logger.debug("epoch %d: %.4f", epoch, loader.averages["loss"])
    if table is not None:
        table.close()
    team.barrier()
    return model, (team.run_dir / "losses.csv").read_text()


if __name__ == "__main__":
    main()
