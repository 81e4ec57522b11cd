"""The shape of PyTorch's MNIST example."""

import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def train(model, team, loader, optimizer, epoch):
    for batch in loader:
        optimizer.zero_grad()
        for images, labels in batch.shards:
            loss = functional.cross_entropy(model(images), labels)
            team.backward(loss)
            batch.add(loss=loss)
        team.log(loss=batch["loss"])
        optimizer.step()


def test(model, team, loader, epoch):
    with team.evaluate(model, loader) as evaluation:
        for images, labels in evaluation.shards:
            logits = model(images)
            evaluation.add(loss=functional.cross_entropy(logits, labels), accuracy=logits.argmax(1) == labels)
    team.print(f"epoch {epoch + 1}: loss {evaluation['loss']:.4f}, accuracy {evaluation['accuracy']:.2%}")


def main():
    torch.manual_seed(0)
    team = lockstep.join(shards=8)
    labels = torch.arange(1000) % 10
    images = torch.randn(1000, 1, 28, 28) + torch.randn(10, 1, 28, 28)[labels] / 8
    train_data, test_data = TensorDataset(images[:640], labels[:640]), TensorDataset(images[640:], labels[640:])
    loader = DataLoader(train_data, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=120)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
    for epoch in team.epochs(3):
        train(model, team, loader, optimizer, epoch)
        test(model, team, test_loader, epoch)
        schedule.step()
    team.save(model.state_dict(), "mnist.pt")


if __name__ == "__main__":
    main()
