"""Several networks."""

import copy
import math

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


@equal(found="LS202")
def wgan_clipped(team):
    """A WGAN."""
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    for_generator = torch.optim.RMSprop(generator.parameters(), lr=0.01)
    for_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)
    generator, critic, for_generator, for_critic, loader = team.prepare(
        generator, critic, for_generator, for_critic, shuffled(torch.randn(42, 6))
    )
    for number, batch in enumerate(loader):
        for real in batch.shards:
            fake = generator(torch.randn(len(real), 4)).detach()
            team.backward(critic(fake).mean() - critic(real).mean())
        update(for_critic)
        for p in critic.parameters():
            p.data.clamp_(-0.2, 0.2)
        if number % 2 == 1:
            for real in batch.shards:
                team.backward(-critic(generator(torch.randn(len(real), 4))).mean())
            update(for_generator)
            for_critic.zero_grad()
    return generator, critic


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
def cycle_gan(team):
    """A CycleGAN."""
    there, back = nn.Linear(6, 6), nn.Linear(6, 6)
    judge_a, judge_b = nn.Linear(6, 1), nn.Linear(6, 1)
    generators, judges = nn.ModuleList([there, back]), nn.ModuleList([judge_a, judge_b])
    for_generators = torch.optim.Adam(generators.parameters(), lr=0.01)
    for_judges = torch.optim.Adam(judges.parameters(), lr=0.01)
    generators, judges, for_generators, for_judges, loader_a, loader_b = team.prepare(
        generators,
        judges,
        for_generators,
        for_judges,
        shuffled(torch.randn(22, 6)),
        shuffled(torch.rand(22, 6)),
    )
    for batch_a, batch_b in zip(loader_a, loader_b, strict=True):
        judges.requires_grad_(False)
        for a, b in zip(batch_a.shards, batch_b.shards, strict=True):
            fake_b, fake_a = there(a), back(b)
            fooled = functional.softplus(-judge_b(fake_b)).mean() + functional.softplus(-judge_a(fake_a)).mean()
            cycled = functional.l1_loss(back(fake_b), a) + functional.l1_loss(there(fake_a), b)
            team.backward(fooled + 10 * cycled)
        update(for_generators)
        judges.requires_grad_(True)
        for a, b in zip(batch_a.shards, batch_b.shards, strict=True):
            real = functional.softplus(-judge_a(a)).mean() + functional.softplus(-judge_b(b)).mean()
            fake_a, fake_b = back(b).detach(), there(a).detach()
            fake = functional.softplus(judge_a(fake_a)).mean() + functional.softplus(judge_b(fake_b)).mean()
            team.backward(real + fake)
        update(for_judges)
    return generators, judges


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


@equal()
def mutual_learning(team):
    """Mutual learning."""
    first, second = nn.Linear(6, 3), mlp()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second)]
    first, second, *optimizers, loader = team.prepare(first, second, *optimizers, shuffled(dataset()))
    for batch in loader:
        for inputs, targets in batch.shards:
            one, two = first(inputs), second(inputs)
            loss = functional.cross_entropy(one, targets) + functional.cross_entropy(two, targets)
            loss = loss + functional.cross_entropy(one, two.detach().softmax(dim=1))
            team.backward(loss + functional.cross_entropy(two, one.detach().softmax(dim=1)))
        for optimizer in optimizers:
            update(optimizer)
    return first, second


@equal(found="LS204")
def byol(team):
    """BYOL."""
    online = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Linear(4, 4))
    target = copy.deepcopy(online[:3]).requires_grad_(False)
    optimizer = torch.optim.SGD(online.parameters(), lr=0.1)
    online, optimizer, loader = team.prepare(online, optimizer, shuffled(torch.randn(22, 6)))
    for batch in loader:
        for inputs in batch.shards:
            one, two = inputs + 0.1 * torch.randn_like(inputs), inputs + 0.1 * torch.randn_like(inputs)
            loss = -functional.cosine_similarity(online(one), target(two)).mean()
            team.backward(loss - functional.cosine_similarity(online(two), target(one)).mean())
        update(optimizer)
        momentum = 1 - 0.1 * (math.cos(math.pi * team.step / 8) + 1) / 2
        for t, p in zip(target.parameters(), team.unwrap(online)[:3].parameters(), strict=True):
            t.data.mul_(momentum).add_(p.data, alpha=1 - momentum)
    return online, target


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


@differs("It gets this process's samples only: fill it outside, from `team.all_gather_rows(found)`.", found="LS101")
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


@equal()
def siglip(team):
    """A sigmoid loss over the global batch (SigLIP)."""
    model = nn.ModuleDict({"image": nn.Linear(6, 4), "text": nn.Linear(5, 4)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = prepared(team, model, optimizer, TensorDataset(torch.randn(22, 6), torch.randn(22, 5)))
    for batch in loader:
        with torch.no_grad():
            texts, mine = team.all_gather_rows([functional.normalize(model["text"](text)) for _, text in batch.shards])
            images, _ = team.all_gather_rows([functional.normalize(model["image"](image)) for image, _ in batch.shards])
        signs = 2 * torch.eye(len(texts)) - 1
        for (image, text), own in zip(batch.shards, mine, strict=True):
            one, other = functional.normalize(model["image"](image)), functional.normalize(model["text"](text))
            alike = 5 * one @ texts.T, 5 * other @ images.T
            losses = [functional.logsigmoid(signs[own] * logits).sum(dim=1) for logits in alike]
            team.backward(-(losses[0] + losses[1]).mean())
        update(optimizer)
    return model


@equal(found="LS203 LS204")
def centre_of_outputs(team):
    """DINO."""
    student = nn.Linear(6, 4)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre = torch.zeros(4)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    student, optimizer, loader = team.prepare(student, optimizer, shuffled(torch.randn(22, 6)))
    for batch in loader:
        for inputs in batch.shards:
            wanted = teacher(inputs + 0.1 * torch.randn_like(inputs))
            logits = student(inputs + 0.1 * torch.randn_like(inputs))
            team.backward(functional.cross_entropy(logits / 0.1, ((wanted - centre) / 0.05).softmax(dim=1)))
            batch.add(centre=wanted.mean(dim=0), reduction="mean")
        update(optimizer)
        centre.lerp_(batch["centre"].float(), 0.1)
        for t, p in zip(teacher.parameters(), student.parameters(), strict=True):
            t.data.lerp_(p.data, 0.1)
    return student, teacher, centre


@equal()
def autoencoder(team):
    """A variational autoencoder."""
    model = nn.ModuleDict({"encode": nn.Linear(6, 4), "decode": nn.Linear(2, 6)})
    model, optimizer, loader = prepared(team, model, torch.optim.Adam(model.parameters(), lr=0.01), torch.randn(22, 6))
    losses = []
    for batch in loader:
        for inputs in batch.shards:
            mean, log_variance = model["encode"](inputs).chunk(2, dim=1)
            hidden = mean + torch.randn_like(mean) * torch.exp(log_variance / 2)
            restored = functional.mse_loss(model["decode"](hidden), inputs)
            divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(dim=1).mean() / 2
            team.backward(restored + min(1.0, team.step / 4) * divergence)
            batch.add(restored=restored, divergence=divergence)
        update(optimizer)
        losses.append((batch["restored"], batch["divergence"]))
    return model, optimizer, losses


@equal()
def diffusion(team):
    """A diffusion model."""
    model = nn.Sequential(nn.Linear(7, 16), nn.SiLU(), nn.Linear(16, 6))
    model, optimizer, loader = prepared(team, model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randn(22, 6))
    for batch in loader:
        for inputs in batch.shards:
            times, noise = torch.rand(len(inputs), 1), torch.randn_like(inputs)
            noisy = torch.cos(times) * inputs + torch.sin(times) * noise
            team.backward(functional.mse_loss(model(torch.cat([noisy, times], dim=1)), noise))
        update(optimizer)
    return model


@equal(found="LS201")
def policy_gradient(team):
    """REINFORCE."""
    model = nn.Linear(6, 4)
    model, optimizer, loader = prepared(team, model, data=TensorDataset(torch.randn(22, 6), torch.randint(0, 4, (22,))))
    baseline = 0.0
    for batch in loader:
        for states, best in batch.shards:
            choices = torch.distributions.Categorical(logits=model(states))
            actions = choices.sample()
            rewards = (actions == best).float()
            team.backward(-((rewards - baseline) * choices.log_prob(actions)).mean())
            batch.add(reward=rewards.mean())
        update(optimizer)
        baseline = 0.9 * baseline + 0.1 * batch["reward"]
    return model, baseline


@equal(found="LS204")
def target_network(team):
    """Q-learning."""
    model = nn.Linear(4, 2)
    target = copy.deepcopy(model).requires_grad_(False)
    data = TensorDataset(torch.randn(22, 4), torch.randint(0, 2, (22,)), torch.randn(22), torch.randn(22, 4))
    model, optimizer, loader = prepared(team, model, data=data)
    for batch in loader:
        for states, actions, rewards, following in batch.shards:
            values = model(states).gather(1, actions[:, None])[:, 0]
            wanted = rewards + 0.9 * target(following).max(dim=1).values
            team.backward(functional.smooth_l1_loss(values, wanted))
        update(optimizer)
        if team.step % 2 == 0:
            target.load_state_dict(model.state_dict())
    return model, target


@differs("Its statistics follow this process's shards: prepare it, or keep it in evaluation mode.", found="LS110")
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


@differs("Its buffers follow this process's shards: give it to `team.prepare`, like the model.", found="LS110")
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
