"""A CNN with early stopping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

torch.manual_seed(0)
team = lockstep.join(shards=8)
labels = torch.arange(480) % 4
images = torch.randn(480, 1, 12, 12) + torch.randn(4, 1, 12, 12)[labels] / 4
train, test = TensorDataset(images[:320], labels[:320]), TensorDataset(images[320:], labels[320:])
loader = DataLoader(train, batch_size=64, shuffle=True)
test_loader = DataLoader(test, batch_size=64)
model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

model, optimizer, loader = team.prepare(model, optimizer, loader)
for epoch in team.epochs(20):
    for batch in loader:
        for x, y in batch.shards:
            loss = nn.functional.cross_entropy(model(x), y)
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    with team.evaluate(model, test_loader) as evaluation:
        for x, y in evaluation.shards:
            evaluation.add(accuracy=model(x).argmax(1) == y)
    accuracy = evaluation["accuracy"]
    team.print(f"epoch {epoch + 1}: accuracy {accuracy:.2%}")
    team.best(accuracy)
    if epoch - team.best_epoch == 3:
        break
