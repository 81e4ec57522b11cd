"""A loop without lockstep, for the functions that are written for it: each batch is one shard, and
nobody else is there."""

from torch.utils.data import DataLoader


class Plain:
    """Stands for a team."""

    step = 0

    def prepare(self, *objects):
        return tuple(Loader(self, one) if isinstance(one, DataLoader) else one for one in objects)

    def backward(self, loss, *, reduction="mean", **options):
        loss.backward(**options)


class Loader:
    """Stands for a prepared loader, and counts the steps."""

    def __init__(self, team, loader):
        self.team, self.loader = team, loader

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for samples in self.loader:
            self.team.step += 1
            yield Batch(samples)


class Batch:
    def __init__(self, samples):
        self.shards, self.values = [samples], {}

    def add(self, **values):
        self.values.update({name: value.item() for name, value in values.items()})

    def __getitem__(self, name):
        return self.values[name]
