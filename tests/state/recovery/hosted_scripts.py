"""Trainings that a library drives: it begins with the epoch that its restored state has, and counts
steps. To use as those of ``whole_scripts``."""

import torch
from torch import nn
from whole_scripts import begin, learn, samples


class Library:
    """Keeps the number of its epochs, and what it has seen."""

    def __init__(self, team, passes, name="library"):
        self.team, self.passes = team, passes
        self.state = team.register(name, {"epoch": 0, "seen": []})

    def fit(self, model, optimizer, num_epochs, after_epoch=lambda: None):
        epochs, state = self.team.hosted_epochs(num_epochs), self.state
        if epochs.is_past:
            epochs.end()
            return
        assert state["epoch"] == epochs.first
        for epoch in range(state["epoch"], num_epochs):
            epochs.begin(epoch)
            if not epochs.is_within or epoch > epochs.first:
                state["seen"].append(float(torch.rand(())))
            for loader in self.passes:
                batches = iter(loader)
                for _ in range(loader.num_skipped, len(loader)):
                    loss = learn(self.team, model, optimizer, next(batches))
                    # The second pass of an epoch restores the state when it begins.
                    state["seen"].append(loss)
                loader.finish()
            after_epoch()
            state["seen"].append(float(torch.rand(())))
            state["epoch"] += 1
        epochs.end()


def a_library_that_counts_its_epochs(team, num_epochs=3):
    model, optimizer, loader = begin(team)
    Library(team, [loader]).fit(model, optimizer, num_epochs)


def a_library_that_evaluates_after_each_epoch(team, num_epochs=3):
    model, optimizer, loader = begin(team)
    schedule = team.prepare(torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0))
    library = Library(team, [loader])

    def evaluate():
        right = 0
        with team.evaluate(model, samples(7, shuffle=False), share=True) as evaluation:
            for batch in evaluation:
                for features, labels in batch.shards:
                    batch.share(int((model(features).argmax(1) == labels).sum()))
                right += sum(batch.shared())
        library.state["seen"].append(right)
        schedule.step(right)

    library.fit(model, optimizer, num_epochs, evaluate)


def a_library_with_two_passes_an_epoch(team, num_epochs=2):
    model, optimizer, loader = begin(team)
    Library(team, [loader, team.prepare(samples(12))]).fit(model, optimizer, num_epochs)


def two_libraries_one_after_the_other(team, num_epochs=2):
    model, optimizer, loader = begin(team)
    Library(team, [loader]).fit(model, optimizer, num_epochs)
    head = nn.Linear(2, 2)
    head, other = team.prepare(head, torch.optim.Adam(head.parameters()))
    Library(team, [loader], "other").fit(lambda features: head(model(features)), other, num_epochs)


SCRIPTS = {
    each.__name__.replace("_", " "): each
    for each in (
        a_library_that_counts_its_epochs,
        a_library_that_evaluates_after_each_epoch,
        a_library_with_two_passes_an_epoch,
        two_libraries_one_after_the_other,
    )
}
