"""Models."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from topics.promises import differs, equal, refused
from topics.shared import dataset, prepared, train, update


@equal()
def dropout(team):
    """Dropout."""
    model, optimizer, loader = prepared(team, nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3)))
    losses = train(team, model, optimizer, loader)
    return model, losses


@equal()
def batch_norm_frozen(team):
    """BatchNorm frozen after an epoch."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    model, optimizer, loader = prepared(team, model, data=dataset(shape=(1, 5, 5)))
    for epoch in team.epochs(2):
        model.train()
        if epoch > 0:
            model[1].eval()
        train(team, model, optimizer, loader)
    return model


@equal()
def other_normalisations(team):
    """GroupNorm, LayerNorm, InstanceNorm."""
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.LayerNorm(16),
        nn.Linear(16, 3),
    )
    model, optimizer, loader = prepared(team, model, data=dataset(shape=(2, 6)))
    train(team, model, optimizer, loader)
    return model


@refused(code="sync-batchnorm-exact")
def sync_batch_norm(team):
    """SyncBatchNorm."""
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    model, optimizer, loader = prepared(team, nn.SyncBatchNorm.convert_sync_batchnorm(model), data=dataset(shape=(2, 6)))
    train(team, model, optimizer, loader)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[1][0][-1])


@equal()
def recurrent(team):
    """An LSTM."""
    model = Recurrent()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 6, 3), torch.randint(1, 7, (22,)), torch.randint(0, 2, (22,)))
    model, optimizer, loader = prepared(team, model, optimizer, data)
    for batch in loader:
        for inputs, lengths, targets in batch.shards:
            team.backward(functional.cross_entropy(model(inputs, lengths), targets))
        update(optimizer)
    return model, optimizer


@equal()
def hidden_state_carried(team):
    """Hidden state in `team.per_shard`."""
    model = nn.ModuleDict({"cell": nn.GRUCell(3, 5), "head": nn.Linear(5, 3)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(38, 4, 3), 12))
    hidden = team.per_shard("hidden", torch.zeros(5))
    for batch in loader:
        for series in batch.shards:
            state, loss = hidden.value.expand(len(series), 5), 0.0
            for time in range(3):
                state = model["cell"](series[:, time], state)
                loss = loss + functional.mse_loss(model["head"](state), series[:, time + 1])
            team.backward(loss)
            hidden.value = state.detach().mean(dim=0)
        update(optimizer)
    return model, optimizer


@differs("It has the value of this process's last shard. Use `team.per_shard(name, start)`.", found="LS101")
def hidden_state_in_a_variable(team):
    """A hidden state kept in a variable."""
    model = nn.ModuleDict({"cell": nn.GRUCell(3, 5), "head": nn.Linear(5, 3)})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(38, 4, 3), 12))
    hidden = torch.zeros(5)
    for batch in loader:
        for series in batch.shards:
            state, loss = hidden.expand(len(series), 5), 0.0
            for time in range(3):
                state = model["cell"](series[:, time], state)
                loss = loss + functional.mse_loss(model["head"](state), series[:, time + 1])
            team.backward(loss)
            hidden = state.detach().mean(dim=0)
        update(optimizer)
    return model, optimizer


@equal()
def attention(team):
    """A transformer layer."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.ModuleDict({"words": nn.Embedding(12, 8), "layer": layer, "head": nn.Linear(8, 12)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = prepared(team, model, optimizer, torch.randint(0, 12, (22, 6)))
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for batch in loader:
        for words in batch.shards:
            hidden = model["layer"](model["words"](words[:, :-1]), src_mask=mask, is_causal=True)
            team.backward(functional.cross_entropy(model["head"](hidden).flatten(0, 1), words[:, 1:].flatten()))
        update(optimizer)
    return model, optimizer


@equal()
def hooks_for_activations(team):
    """An activation penalty (forward hook)."""
    model, optimizer, loader = prepared(team)
    caught = []
    model[1].register_forward_hook(lambda module, args, result: caught.append(result))
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss + 0.1 * caught.pop().abs().mean())
        update(optimizer)
    return model


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -0.5 * gradient


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@equal()
def own_autograd_function(team):
    """Custom autograd functions."""
    model = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 3), nn.Linear(4, 2)])
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)), torch.randint(0, 2, (22,)))
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets, domains in batch.shards:
            features = Round.apply(torch.tanh(model[0](inputs)))
            wanted = functional.cross_entropy(model[1](features), targets)
            unwanted = functional.cross_entropy(model[2](Reverse.apply(features)), domains)
            team.backward(wanted + unwanted)
        update(optimizer)
    return model


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.seen += len(x)
        return self.body(x)


@equal()
def counter_in_a_buffer(team):
    """A counter of samples in a buffer (a warning)."""
    model, optimizer, loader = prepared(team, Counting(), data=torch.randn(22, 6))
    for batch in loader:
        for inputs in batch.shards:
            team.backward(model(inputs).square().mean())
        update(optimizer)
    return model


class Banked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.register_buffer("bank", functional.normalize(torch.randn(22, 4), dim=1))

    def forward(self, x, index):
        found = functional.normalize(self.body(x), dim=1)
        logits = found @ self.bank.clone().T / 0.2
        self.bank[index] = found.detach()
        return logits


@equal()
def bank_in_a_buffer(team):
    """A memory bank in a buffer, written in the forward pass (a warning)."""
    model, optimizer, loader = prepared(team, Banked(), data=TensorDataset(torch.randn(22, 6), torch.arange(22)))
    for batch in loader:
        for inputs, index in batch.shards:
            team.backward(functional.cross_entropy(model(inputs, index), index))
        update(optimizer)
    return model


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.num_calls += 1
            self.mean += (x.mean(dim=0) - self.mean) / self.num_calls
        return self.layer(x - self.mean)


@equal()
def input_statistics(team):
    """Running input statistics."""
    model, optimizer, loader = prepared(team, Normalised())
    train(team, model, optimizer, loader)
    return model


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(0, 6))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x.detach()])
        return self.layer(x)


@refused(code="buffer-changed-form")
def growing_buffer(team):
    """A buffer that grows."""
    model, optimizer, loader = prepared(team, Growing())
    train(team, model, optimizer, loader)


@equal()
def own_autocast(team):
    """The script's own `torch.autocast`."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            with torch.autocast("cpu", torch.bfloat16):
                loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
        update(optimizer)
    return model


class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.num_calls = nn.Linear(6, 3), 0

    def forward(self, x):
        self.num_calls += 1
        return self.layer(x) * (1 + 1 / self.num_calls)


@differs(
    "Only this process's shards change it: use a buffer, which is combined over the shards, or set it outside.",
    found="LS104",
)
def counter_in_the_model(team):
    """A counter in a plain attribute of the model."""
    model, optimizer, loader = prepared(team, Cooling())
    train(team, model, optimizer, loader)
    return model


@equal()
def saved_tensors_moved(team):
    """`save_on_cpu`, with anomaly detection."""
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            with torch.autograd.graph.save_on_cpu(), torch.autograd.set_detect_anomaly(True, check_nan=False):
                team.backward(functional.cross_entropy(model(inputs), targets))
        update(optimizer)
    return model
