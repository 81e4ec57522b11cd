"""docs/tune.md shows what the commands really print: its blocks are made anew, and compared but for
numbers."""

import re
from pathlib import Path

import pytest
from crew import warm_server
from launchers import nursery, warm_trials
from pages import unwrapped
from warm import run_on

__all__ = ["nursery", "warm_trials"]

PAGE = (Path(__file__).parents[2] / "docs" / "tune.md").read_text()
SHOWN = {
    command: unwrapped(text) for command, text in re.findall(r"<!-- ([^>]*?) -->\n```text\n(.*?)```", PAGE, flags=re.DOTALL)
}
IN_EVERY_RUN = ("tuning ", "the script", "no workers", "N workers:", "data-bound", "to apply")
TRAIN = """
import time, torch, lockstep
from torch.utils.data import DataLoader, Dataset

class Decode:
    def __call__(self, image):
        time.sleep(0.02)  # a decoder that waits for its disk
        return image

class Images(Dataset):
    decode = Decode()
    def __len__(self):
        return 20_000
    def __getitem__(self, index):
        return self.decode(torch.ones(64)), index % 10

team = lockstep.join(threads=1)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(Images(), 16, shuffle=True))
for epoch in team.epochs(1):
    for batch in loader:
        for images, labels in batch.shards:
            time.sleep(0.008)  # a step that a GPU takes
            team.backward(torch.nn.functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
"""

pytestmark = [pytest.mark.timeout(300), pytest.mark.longest]  # (tests/tools/tune is not.)


def plain(text):
    """Without what differs from run to run: numbers, and how well workers keep up with them."""
    text = re.sub(r"[0-9][0-9.]*", "N", text)
    text = re.sub(r"N workers (keep up|reduce the wait to N ms)", "N workers", text)
    return [line.strip() for line in text.splitlines()]


def test_the_command_prints_what_the_page_shows(warm_trials, outlives_tests, request, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    ((command, text),) = SHOWN.items()
    _, verb, *words = command.split()
    done = run_on(warm_server(request, outlives_tests), tmp_path, words, verb=verb)
    assert done.returncode == 0, done.stderr
    printed = plain(done.stdout)
    assert [line for line in plain(text) if line.startswith(IN_EVERY_RUN) and line not in printed] == [], printed
