"""Writes docs/check-codes.md from the table of codes in lockstep: python
tests/tools/check/codes_page.py.

Messages and remedies are what ``lockstep check`` prints for the example of each code. Reasons and
examples are here. A test checks that the example before the change has that finding, and that the
example after it has none.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from lockstep._tools.check.findings import RULES
from lockstep._tools.check.reader import read_source

PAGE = Path(__file__).parents[3] / "docs" / "check-codes.md"
HEAD = """\
# Check codes

<!-- Written by tests/tools/check/codes_page.py: change that, and run it. -->

This page explains each code that [`lockstep check`](check.md) prints, and that a run prints when it
starts. You need it when a message names a code:

```
lockstep check train.py
```

| codes | meaning |
|---|---|
| LS1.. | results depend on the number of processes |
| LS2.. | a variable or object starts over after a resume, because it is in no checkpoint |
| LS3.. | the script does not do what it seems to do |
| LS4.. | the script ends with an error on a GPU |

To accept a finding, end its line with the comment `# lockstep: ok`, or `# lockstep: ok LS102` for
one code. Codes that are not listed are not used.

*Inside* is the body of the shard loop, `for ... in batch.shards`. *Outside* is the rest of the
loop. See [inside and outside](loop.md#inside-and-outside-the-shard-loop).
"""
FAMILIES = {
    "LS1": "LS1: results depend on the number of processes",
    "LS2": "LS2: starts over after a resume",
    "LS3": "LS3: not what was meant",
    "LS4": "LS4: an error on a GPU",
}
# The lines before each example, which the page does not show.
PREAMBLE = """\
import copy
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
import lockstep
"""
SETUP = """\
team = lockstep.join(shards=8)
criterion = nn.CrossEntropyLoss()
network = nn.Sequential(nn.Linear(8, 3))
sgd = torch.optim.SGD(network.parameters(), lr=0.1)
model, optimizer, loader = team.prepare(network, sgd, DataLoader(TensorDataset(torch.randn(64, 8), torch.arange(64) % 3), 16))
best_bound, n = 1.0, 100
"""


@dataclass(frozen=True)
class Code:
    """The part of the page about one code."""

    title: str
    why: str
    example: str
    """A diff, with two columns before each line: from what is wrong to what is right."""
    setup: str = SETUP
    others: tuple[str, ...] = ()
    """More ways to write it that have the same code."""

    def before(self):
        return self._lines("- ")

    def after(self):
        return self._lines("+ ")

    def _lines(self, *kept):
        shown = [line[2:] for line in self.example.splitlines() if line[:2] in ("  ", "", *kept)]
        return PREAMBLE + self.setup + "\n".join(shown) + "\n"


CODES = {
    "LS101": Code(
        "A variable is set inside and read outside",
        "After the shard loop, the variable has the value of the last shard of this process. Which shard that is depends on "
        "the number of processes.",
        """\
  for batch in loader:
      for x, y in batch.shards:
          loss = criterion(model(x), y)
          team.backward(loss)
+         batch.add(loss=loss)
      optimizer.step()
      optimizer.zero_grad()
-     if loss < 0.1:
+     if batch["loss"] < 0.1:
          break
""",
    ),
    "LS102": Code(
        "A counter or sum is updated inside and read elsewhere",
        "Each process counts only the shards that it runs, so the total differs from rank to rank.",
        """\
  for batch in loader:
-     correct = 0
      for x, y in batch.shards:
          logits = model(x)
          team.backward(criterion(logits, y))
-         correct += (logits.argmax(1) == y).sum().item()
+         batch.add(correct=logits.argmax(1) == y)
      optimizer.step()
      optimizer.zero_grad()
-     if correct == 16:
+     if batch["correct"] == 1.0:
          break
""",
        others=("a maximum, a minimum, or `found = found or ...`",),
    ),
    "LS103": Code(
        "A list, dict, tensor or object is changed inside and read elsewhere",
        "It contains only what the shards of this process added to it.",
        """\
  queue = []
+ team.register("queue", queue)
  for batch in loader:
+     found = []
      for x, y in batch.shards:
          features = model(x)
-         queue.append(features.detach())
+         found.append(features.detach())
          team.backward(criterion(features, y))
      optimizer.step()
      optimizer.zero_grad()
+     for part in team.all_gather_object(found):
+         queue.extend(part)
      if len(queue) > 100:
          break
""",
        others=("the cache of a function that draws random numbers",),
    ),
    "LS104": Code(
        "An attribute is set inside, from its old value or from the samples",
        "`forward` runs once per shard, so the attribute changes as often as this process has shards.",
        """\
  class Warm(nn.Module):
      def __init__(self):
          super().__init__()
          self.layer = nn.Linear(8, 3)
-         self.calls = 0

-     def forward(self, x):
+     def forward(self, x, step):
-         self.calls += 1
-         return self.layer(x) * min(1.0, self.calls / 100)
+         return self.layer(x) * min(1.0, step / 100)


  net = team.prepare(Warm())
  for batch in loader:
      for x, y in batch.shards:
-         team.backward(criterion(net(x), y))
+         team.backward(criterion(net(x, team.step), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS105": Code(
        "A random generator of the script is drawn from inside",
        "The generator continues from shard to shard of this process, so the numbers of a shard depend on the shards before "
        "it. lockstep seeds the generators of torch, numpy and random for each shard.",
        """\
- rng = random.Random(0)
  for batch in loader:
      for x, y in batch.shards:
-         x = x * rng.random()
+         x = x * random.random()
          team.backward(criterion(model(x), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS106": Code(
        "An average of the weights is updated inside",
        "The average moves once per shard of this process, and before the optimizer step.",
        """\
  def average_weights():
      with torch.no_grad():
          for mean, parameter in zip(average.parameters(), model.parameters()):
              mean.lerp_(parameter, 0.01)


- average = copy.deepcopy(network)
+ average = team.prepare(copy.deepcopy(network))
  for batch in loader:
      for x, y in batch.shards:
          team.backward(criterion(model(x), y))
-         average_weights()
      optimizer.step()
      optimizer.zero_grad()
+     average_weights()
  torch.save(average.state_dict(), "average.pt")
""",
    ),
    "LS107": Code(
        "The number of a shard or loader worker is used",
        "`enumerate` counts only the shards that this process runs. A worker's number depends on the number of workers.",
        """\
  for batch in loader:
-     for number, (x, y) in enumerate(batch.shards):
+     for x, y in batch.shards:
          loss = criterion(model(x), y)
-         team.backward(loss * (1 + number))
+         team.backward(loss * (1 + team.step % 8))
      optimizer.step()
      optimizer.zero_grad()
""",
        others=("`zip(batch.shards, itertools.count())`", "`get_worker_info().id`"),
    ),
    "LS109": Code(
        "A dataset or `collate_fn` keeps what it counted or drew",
        "Each process and each loader worker has a separate copy, which sees different samples.",
        """\
  class Noisy(Dataset):
      def __init__(self):
-         self.seen = 0
+         self.inputs = torch.randn(64, 8)

      def __len__(self):
          return 64

      def __getitem__(self, index):
-         self.seen += 1
-         return torch.full((8,), float(self.seen)), index % 3
+         return self.inputs[index], index % 3


  train_loader = team.prepare(DataLoader(Noisy(), batch_size=16))
  for batch in train_loader:
      for x, y in batch.shards:
          team.backward(criterion(model(x), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS110": Code(
        "A module with running statistics is not prepared",
        "Its statistics follow the shards of this process. lockstep combines the buffers of prepared modules over all shards.",
        """\
- teacher = nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3))
+ teacher = team.prepare(nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3)))
  for batch in loader:
      for x, y in batch.shards:
          team.backward((model(x) - teacher(x)).square().mean())
      optimizer.step()
      optimizer.zero_grad()
  torch.save(teacher.state_dict(), "teacher.pt")
""",
        others=("a buffer of an unprepared module is changed",),
    ),
    "LS111": Code(
        "`next()` takes an item inside",
        "Which item a shard gets depends on the shards before it on this process.",
        """\
- noise = iter(DataLoader(TensorDataset(torch.randn(64, 8)), 2))
+ noise = team.prepare(DataLoader(TensorDataset(torch.randn(64, 8)), 16))
- for batch in loader:
+ for batch, other in zip(loader, noise):
-     for x, y in batch.shards:
+     for (x, y), (z,) in zip(batch.shards, other.shards):
-         (z,) = next(noise)
          team.backward(criterion(model(x + z), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS112": Code(
        "A number is scaled by the number of processes",
        "`batch_size` is that of the global batch, on any number of processes, so there is nothing to scale, anywhere in "
        "the script.",
        """\
- lr = 0.1 * team.world_size
+ lr = 0.1
  net = nn.Sequential(nn.Linear(8, 3))
  net, opt = team.prepare(net, torch.optim.SGD(net.parameters(), lr=lr))
  for batch in loader:
      for x, y in batch.shards:
          team.backward(criterion(net(x), y))
      opt.step()
      opt.zero_grad()
""",
        others=("`dist.get_world_size()`", "the variable `WORLD_SIZE`"),
    ),
    "LS113": Code(
        "A sample that the dataset keeps is changed in place",
        "The next epoch in this process gets the changed sample. Other processes and loader workers, and resumed runs, do not.",
        """\
  def collate(rows):
      for row in rows:
-         row["x"] = row["x"] * 2
+         row = {**row, "x": row["x"] * 2}
      return torch.stack([row["x"] for row in rows])


  rows = [{"x": torch.randn(8)} for _ in range(64)]
  train_loader = team.prepare(DataLoader(rows, 16, collate_fn=collate))
  for batch in train_loader:
      for x in batch.shards:
          team.backward(model(x).square().mean())
      optimizer.step()
      optimizer.zero_grad()
""",
        others=("in `__getitem__`", "in the loop, if batches contain the samples themselves"),
    ),
    "LS201": Code(
        "A variable or attribute is carried from step to step",
        "A resumed run executes the script from the top, so the variable starts with its first value.",
        """\
- best = 1e9
+ state = team.state(best=1e9)
  for epoch in team.epochs(10):
      for batch in loader:
          for x, y in batch.shards:
              loss = criterion(model(x), y)
              team.backward(loss)
              batch.add(loss=loss)
          optimizer.step()
          optimizer.zero_grad()
-     if loader.averages["loss"] > best:
+     if loader.averages["loss"] > state.best:
          break
-     best = loader.averages["loss"]
+     state.best = loader.averages["loss"]
""",
        others=("an attribute, such as `model[1].p` or `sampler.weights`",),
    ),
    "LS202": Code(
        "The number of `enumerate(loader)` is used",
        "A pass that resumes in its middle counts from 0 again.",
        """\
- for step, batch in enumerate(loader):
+ for batch in loader:
      for x, y in batch.shards:
          team.backward(criterion(model(x), y))
-     optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
+     optimizer.param_groups[0]["lr"] = 0.1 / team.step
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS203": Code(
        "A list, dict, tensor or object is carried from step to step",
        "It is in no checkpoint, so a resumed run starts with an empty one.",
        """\
  losses = []
+ team.register("losses", losses)
  for batch in loader:
      for x, y in batch.shards:
          loss = criterion(model(x), y)
          team.backward(loss)
          batch.add(loss=loss)
      optimizer.step()
      optimizer.zero_grad()
      losses.append(batch["loss"])
      if sum(losses[-10:]) < 1.0:
          break
""",
        others=(
            "in an optimizer, an object of a class of the script",
            "in a registered object, what its `state_dict()` omits",
            "the cache of a function that draws random numbers",
        ),
    ),
    "LS204": Code(
        "A copy or average of a model is not prepared",
        "It is in no checkpoint, so a resumed run starts with a copy of the initial weights.",
        """\
- average = copy.deepcopy(network)
+ average = team.prepare(copy.deepcopy(network))
  for batch in loader:
      for x, y in batch.shards:
          team.backward(criterion(model(x), y))
      optimizer.step()
      optimizer.zero_grad()
      with torch.no_grad():
          for mean, parameter in zip(average.parameters(), model.parameters()):
              mean.lerp_(parameter, 0.01)
  torch.save(average.state_dict(), "average.pt")
""",
    ),
    "LS205": Code(
        "A random generator of the script is drawn from outside",
        "It starts from its seed again in a resumed run. Or draw from the global generators of torch, numpy and random.",
        """\
  rng = random.Random(0)
+ team.register("rng", rng)
  for batch in loader:
      share = rng.random()
      for x, y in batch.shards:
          team.backward(share * criterion(model(x), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS206": Code(
        "An iterator over something that is not prepared is used",
        "Its position is in no checkpoint, so a resumed run reads it from the beginning.",
        """\
- noise = iter(DataLoader(TensorDataset(torch.randn(64, 8)), 16))
+ noise = iter(team.prepare(DataLoader(TensorDataset(torch.randn(64, 8)), 16)))
  for batch in loader:
-     (z,) = next(noise)
+     other = next(noise)
-     for x, y in batch.shards:
+     for (x, y), (z,) in zip(batch.shards, other.shards):
          team.backward(criterion(model(x + z.mean()), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS207": Code(
        "Steps are counted by `islice`, `zip(range(n), ...)` or calls of `next()`",
        "The count starts at 0 when the run resumes, so the interrupted pass gets n more steps. For calls of `next()`, "
        "write `while team.step < n`.",
        """\
- for _, batch in zip(range(100), loader):
+ for batch in loader.take(100):
      for x, y in batch.shards:
          team.backward(criterion(model(x), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
    "LS208": Code(
        "`zip` or `enumerate` runs along with `team.epochs(n)`",
        "The epoch continues where the run was interrupted, but the other value starts from its beginning.",
        """\
  rates = [0.1, 0.01, 0.001]
- for epoch, rate in zip(team.epochs(3), rates):
+ for epoch in team.epochs(3):
-     optimizer.param_groups[0]["lr"] = rate
+     optimizer.param_groups[0]["lr"] = rates[epoch]
      for batch in loader:
          for x, y in batch.shards:
              team.backward(criterion(model(x), y))
          optimizer.step()
          optimizer.zero_grad()
""",
    ),
    "LS304": Code(
        "A model is created before `join()`",
        "`join()` seeds the random generators. Before it, the initial weights differ in each launch.",
        """\
- net = nn.Sequential(nn.Linear(8, 3))
- team = lockstep.join(shards=8)
+ team = lockstep.join(shards=8)
+ net = nn.Sequential(nn.Linear(8, 3))
  data = TensorDataset(torch.randn(64, 8))
  opt = torch.optim.SGD(net.parameters(), lr=0.1)
  net, opt, loader = team.prepare(net, opt, DataLoader(data, 16))
  for batch in loader:
      for (x,) in batch.shards:
          team.backward(net(x).square().mean())
      opt.step()
      opt.zero_grad()
""",
        setup="",
    ),
    "LS305": Code(
        "`join()` has no such argument",
        "The run would end with an error when it starts.",
        """\
- team = lockstep.join(shard=4)
+ team = lockstep.join(shards=4)
""",
        setup="",
    ),
    "LS401": Code(
        "An operation has no deterministic kernel on a GPU",
        "There, a run uses deterministic kernels only, and PyTorch raises an error for an operation that has none, mostly in "
        "the first backward pass. A run prints this code only if it is on a GPU. [The "
        "list](deterministic-kernels.md) has all such operations.",
        """\
  for batch in loader:
      for x, y in batch.shards:
-         wide = torch.nn.functional.pad(x, (2, 2), mode="reflect")
+         wide = torch.cat([x[..., 1:3].flip(-1), x, x[..., -3:-1].flip(-1)], -1)
          team.backward(criterion(model(wide), y))
      optimizer.step()
      optimizer.zero_grad()
""",
    ),
}


def finding_of(name):
    """The finding of this code in the example before the change."""
    findings = [found for found in read_source(CODES[name].before()) if found.code == name]
    assert findings, f"the example of {name} has no such finding"
    return findings[0]


def page():
    """The text of docs/check-codes.md."""
    lines = [HEAD]
    for family, heading in FAMILIES.items():
        lines.append(f"## {heading}\n")
        lines.append("| code | finding |\n|---|---|")
        names = [name for name in CODES if name.startswith(family)]
        lines += [f"| [{name}](#{name.lower()}) | {CODES[name].title} |" for name in names]
        lines.append("")
        for name in names:
            lines += section(name)
    return "\n".join(lines).rstrip("\n") + "\n"


def section(name):
    code, found = CODES[name], finding_of(name)
    yield f"### {name}\n"
    yield wrapped(f"**{code.title}.** {code.why}") + "\n"
    if code.others:
        yield wrapped(f"Also: {'; '.join(code.others)}.") + "\n"
    message = re.sub(r"\bline \d+", "line N", found.message)
    yield f"```text\n{wrapped(f'train.py:N: {name} {message}')}\n{wrapped(f'write: {found.remedy}', '    ')}\n```\n"
    yield f"```diff\n{code.example}```\n"


def wrapped(text, indent=""):
    """In lines of at most 100 columns, with code spans in one piece."""
    import textwrap

    text = re.sub(r"`[^`]+`", lambda span: span[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(
        text, 100, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


if __name__ == "__main__":
    assert list(CODES) == list(RULES)
    PAGE.write_text(page())
