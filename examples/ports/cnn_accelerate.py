"""A CNN with early stopping."""

from pathlib import Path  # resume

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class State(dict):  # resume
    state_dict = dict.copy  # resume
    load_state_dict = dict.update  # resume


torch.manual_seed(0)
accelerator = Accelerator()
labels = torch.arange(480) % 4
images = torch.randn(480, 1, 12, 12) + torch.randn(4, 1, 12, 12)[labels] / 4
train, test = TensorDataset(images[:320], labels[:320]), TensorDataset(images[320:], labels[320:])
loader = DataLoader(train, batch_size=64, shuffle=True)
test_loader = DataLoader(test, batch_size=64)
model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
state = State(begin=0, best=0.0, bad=0)  # resume
accelerator.register_for_checkpointing(state)  # resume
if Path("checkpoint").exists():  # resume
    accelerator.load_state("checkpoint")  # resume
begin, best, bad = state.values()  # resume
for epoch in range(begin, 20):  # resume
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            logits, y = accelerator.gather_for_metrics((model(x), y))
            correct += (logits.argmax(1) == y).sum().item()
    accuracy = correct / len(test)
    accelerator.print(f"epoch {epoch + 1}: accuracy {accuracy:.2%}")
    if accuracy > best:
        best, bad = accuracy, 0
        accelerator.save(accelerator.unwrap_model(model).state_dict(), "best.pt")
    else:
        bad += 1
    if bad == 3:
        break
    state.update(begin=epoch + 1, best=best, bad=bad)  # resume
    accelerator.save_state("checkpoint")  # resume
