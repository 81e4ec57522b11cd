"""A CNN with early stopping."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
labels = torch.arange(480) % 4
images = torch.randn(480, 1, 12, 12) + torch.randn(4, 1, 12, 12)[labels] / 4
train, test = TensorDataset(images[:320], labels[:320]), TensorDataset(images[320:], labels[320:])
loader = DataLoader(train, batch_size=64, shuffle=True)
test_loader = DataLoader(test, batch_size=64)
model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

best, bad = 0.0, 0
for epoch in range(20):
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            x, y = x.to(device), y.to(device)
            logits = model(x)
            correct += (logits.argmax(1) == y).sum().item()
    accuracy = correct / len(test)
    print(f"epoch {epoch + 1}: accuracy {accuracy:.2%}")
    if accuracy > best:
        best, bad = accuracy, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        bad += 1
    if bad == 3:
        break
