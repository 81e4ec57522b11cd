"""The shape of PyTorch's MNIST example."""

from pathlib import Path  # resume

import torch
from accelerate import Accelerator
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def train(model, accelerator, loader, optimizer, epoch):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        if step % 10 == 0:
            accelerator.print(f"step {step} of {len(loader)}: loss {loss.item():.4f}")


def test(model, accelerator, loader, epoch):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits, labels = accelerator.gather_for_metrics((model(images), labels))
            loss += functional.cross_entropy(logits, labels, reduction="sum").item()
            correct += (logits.argmax(1) == labels).sum().item()
    n = len(loader.dataset)
    accelerator.print(f"epoch {epoch + 1}: loss {loss / n:.4f}, accuracy {correct / n:.2%}")


def main():
    torch.manual_seed(0)
    accelerator = Accelerator()
    labels = torch.arange(1000) % 10
    images = torch.randn(1000, 1, 28, 28) + torch.randn(10, 1, 28, 28)[labels] / 8
    train_data, test_data = TensorDataset(images[:640], labels[:640]), TensorDataset(images[640:], labels[640:])
    loader = DataLoader(train_data, batch_size=64, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=120)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
    accelerator.register_for_checkpointing(schedule)  # resume
    if Path("checkpoint").exists():  # resume
        accelerator.load_state("checkpoint")  # resume
    for epoch in range(schedule.last_epoch, 3):  # resume
        train(model, accelerator, loader, optimizer, epoch)
        test(model, accelerator, test_loader, epoch)
        schedule.step()
        accelerator.save_state("checkpoint")  # resume
    accelerator.save(accelerator.unwrap_model(model).state_dict(), "mnist.pt")


if __name__ == "__main__":
    main()
