"""Several networks."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from topics.promises import differs, equal
from topics.shared import dataset, mlp, prepared, shuffled, update


def score(judge, samples, wanted):
    logits = judge(samples)
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, wanted))


def make_gan():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, judge)]
    return generator, judge, *optimizers, DataLoader(TensorDataset(torch.randn(22, 6), torch.randn(22, 4)), 10)


@equal(plain=True)
def gan(team):
    """A GAN."""
    generator, judge, for_generator, for_judge, loader = team.prepare(*make_gan())
    for batch in loader:
        for real, noise in batch.shards:
            team.backward(score(judge, real, 1.0) + score(judge, generator(noise).detach(), 0.0))
        update(for_judge)
        for _, noise in batch.shards:
            team.backward(score(judge, generator(noise), 1.0))
        update(for_generator)
        for_judge.zero_grad()
    return generator, judge, for_generator, for_judge


@equal()
def gan_both_at_once(team):
    """A GAN, one forward pass."""
    generator, judge = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, judge)]
    generator, judge, *optimizers, loader = team.prepare(generator, judge, *optimizers, shuffled(torch.randn(22, 6)))
    for batch in loader:
        for real in batch.shards:
            fake = generator(torch.randn(len(real), 4))
            judged = functional.softplus(-judge(real)).mean() + functional.softplus(judge(fake.detach())).mean()
            judge.requires_grad_(False)
            fooled = functional.softplus(-judge(fake)).mean()
            judge.requires_grad_(True)
            team.backward(judged)
            team.backward(fooled)
        for optimizer in optimizers:
            update(optimizer)
    return generator, judge, optimizers


@equal()
def wgan_gradient_penalty(team):
    """WGAN-GP."""
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
    for_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
    generator, critic, for_generator, for_critic, loader = team.prepare(
        generator, critic, for_generator, for_critic, shuffled(torch.randn(22, 6))
    )
    for batch in loader:
        for _ in range(3):
            for_critic.zero_grad()
            for real in batch.shards:
                fake = generator(torch.randn(len(real), 4)).detach()
                mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_(True)
                [slope] = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
                penalty = (slope.norm(dim=1) - 1).square().mean()
                team.backward(critic(fake).mean() - critic(real).mean() + 10 * penalty)
            for_critic.step()
        for_generator.zero_grad()
        for real in batch.shards:
            team.backward(-critic(generator(torch.randn(len(real), 4))).mean())
        for_generator.step()
    return generator, critic, for_generator, for_critic


@equal()
def distillation(team):
    """An unprepared frozen teacher."""
    teacher = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).eval().requires_grad_(False)
    model, optimizer, loader = prepared(team)
    for batch in loader:
        for inputs, targets in batch.shards:
            wanted = (teacher(inputs) / 2).log_softmax(dim=1)
            logits = model(inputs)
            soft = functional.kl_div((logits / 2).log_softmax(dim=1), wanted, log_target=True, reduction="batchmean")
            team.backward(functional.cross_entropy(logits, targets) + 4 * soft)
        update(optimizer)
    return model, teacher


@equal()
def distillation_prepared_teacher(team):
    """A prepared teacher with BatchNorm."""
    teacher = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    teacher, model, optimizer, loader = team.prepare(teacher, model, optimizer, shuffled(dataset()))
    teacher.eval()
    for batch in loader:
        for inputs, _ in batch.shards:
            with torch.no_grad():
                wanted = teacher(inputs).softmax(dim=1)
            team.backward(functional.cross_entropy(model(inputs), wanted))
        update(optimizer)
    return model, teacher


@equal()
def teacher_not_frozen(team):
    """An unprepared teacher that was not frozen."""
    model = mlp()
    data = dataset()
    teacher = mlp()
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for inputs, targets in batch.shards:
            distance = functional.mse_loss(model(inputs), teacher(inputs))
            team.backward(functional.cross_entropy(model(inputs), targets) + distance)
        update(optimizer)
    return model


@equal(found="LS204")
def moco(team):
    """MoCo, its queue filled outside."""
    model = nn.Linear(6, 4)
    keys_model = copy.deepcopy(model).requires_grad_(False)
    queue = functional.normalize(torch.randn(20, 4), dim=1)
    model, optimizer, loader = prepared(team, model, data=torch.randn(22, 6))
    team.register("queue", queue)
    for batch in loader:
        with torch.no_grad():
            for k, p in zip(keys_model.parameters(), model.parameters(), strict=True):
                k.lerp_(p, 0.1)
        found = []
        for inputs in batch.shards:
            queries = functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
            keys = functional.normalize(keys_model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
            logits = torch.cat([(queries * keys).sum(dim=1, keepdim=True), queries @ queue.T], dim=1) / 0.2
            team.backward(functional.cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long)))
            found.append(keys)
        update(optimizer)
        new, _ = team.all_gather_rows(found)
        queue.copy_(torch.cat([new, queue])[:20])
    return model, keys_model, queue


@differs("It contains only this process's samples. Fill it outside, from `team.all_gather_rows(found)`.", found="LS101")
def queue_filled_inside(team):
    """A queue filled inside."""
    model = nn.Linear(6, 4)
    queue = functional.normalize(torch.randn(20, 4), dim=1)
    model, optimizer, loader = prepared(team, model, data=torch.randn(22, 6))
    for batch in loader:
        for inputs in batch.shards:
            queries = functional.normalize(model(inputs), dim=1)
            logits = torch.cat([queries.square().sum(dim=1, keepdim=True), queries @ queue.T], dim=1) / 0.2
            team.backward(functional.cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long)))
            queue = torch.cat([queries.detach(), queue])[:20]
        update(optimizer)
    return model, queue


@equal()
def simclr(team):
    """SimCLR: contrast within a shard."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    model, optimizer, loader = prepared(team, model, torch.optim.Adam(model.parameters(), lr=0.01), torch.randn(22, 6))
    for batch in loader:
        for inputs in batch.shards:
            views = torch.cat([inputs + 0.1 * torch.randn_like(inputs) for _ in range(2)])
            found = functional.normalize(model(views), dim=1)
            alike = found @ found.T / 0.5 - 1e9 * torch.eye(len(found))
            team.backward(functional.cross_entropy(alike, torch.arange(len(found)).roll(len(inputs))))
        update(optimizer)
    return model


@equal()
def contrast_over_all_shards(team):
    """Contrast over the global batch."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    model, optimizer, loader = prepared(team, model, data=TensorDataset(torch.randn(22, 6), torch.randn(22, 6)))
    for batch in loader:
        found = []
        for _, partners in batch.shards:
            with torch.no_grad():
                found.append(functional.normalize(model(partners), dim=1))
        everyone, mine = team.all_gather_rows(found)
        for (inputs, _), own in zip(batch.shards, mine, strict=True):
            alike = functional.normalize(model(inputs), dim=1) @ everyone.T / 0.2
            team.backward(functional.cross_entropy(alike, torch.arange(own.start, own.stop)))
        update(optimizer)
    return model


@differs("Its statistics follow this process's shards. Prepare it, or keep it in evaluation mode.", found="LS110")
def teacher_with_batch_norm_not_prepared(team):
    """An unprepared teacher with BatchNorm in training mode."""
    teacher = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3)).requires_grad_(False)
    model, optimizer, loader = prepared(team, nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), data=torch.randn(22, 2, 6))
    for epoch in team.epochs(2):
        teacher.train(epoch == 0)
        for batch in loader:
            for inputs in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), teacher(inputs).softmax(dim=1)))
            update(optimizer)
    return model, teacher


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, outputs):
        loss = (outputs - self.centre - 1.0).square().mean()
        self.centre.lerp_(outputs.detach().mean(dim=0), 0.3)
        return loss


@differs("Its buffers follow this process's shards. Pass it to `team.prepare`, like the model.", found="LS110")
def loss_with_a_buffer(team):
    """An unprepared loss module with a buffer."""
    model, criterion = nn.Linear(6, 3), Centred()
    model, optimizer, loader = prepared(team, model, data=torch.randn(22, 6))
    for batch in loader:
        for inputs in batch.shards:
            team.backward(criterion(model(inputs)))
        update(optimizer)
    return model, criterion


@equal()
def loss_with_a_buffer_prepared(team):
    """A prepared loss module with a buffer."""
    model, criterion = nn.Linear(6, 3), Centred()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = shuffled(torch.randn(22, 6))
    model, criterion, optimizer, loader = team.prepare(model, criterion, optimizer, loader)
    for batch in loader:
        for inputs in batch.shards:
            team.backward(criterion(model(inputs)))
        update(optimizer)
    return model, criterion
