"""Losses with sizes of the batch, which each shard has another of."""

import torch
from loops import parts
from torch import nn

from lockstep._base.errors import LockstepError
from lockstep.integrations.accelerate import Accelerator


def rows(outputs, y):
    return nn.functional.cross_entropy(outputs, y, reduction="none")


SCALED = {
    "shape": lambda x, y, loss: loss * x.shape[0] / 12,
    "reflected": lambda x, y, loss: x.shape[0] * loss,
    "size": lambda x, y, loss: loss / y.size(0),
    "size of all": lambda x, y, loss: loss / y.size()[0],
    "numel": lambda x, y, loss: loss.div(y.numel()),
    "a function": lambda x, y, loss: torch.div(loss, torch.numel(y)),
    "computed": lambda x, y, loss: loss * (x.shape[0] * x.shape[1] / 60 + 1),
    "in a term": lambda x, y, loss: 0.5 * loss + (loss.detach() - loss / x.size(0)).float(),
    "before a sum": lambda x, y, loss: (loss.reshape(1) / x.shape[0]).sum(),
}
"""Losses that a size of the shard scales."""


MEANT = {
    "views": lambda x, y, outputs: (rows(outputs.view(x.size(0), -1), y.view(x.shape[0])).mean(), None),
    "a sum of a slice": lambda x, y, outputs: (rows(outputs, y)[: x.shape[0]].mean(), None),
    "a weight": lambda x, y, outputs: (rows(outputs, y).sum() / x.shape[0], y.size(0)),
}
"""Losses of the same value, in which sizes are right, and the weight of each."""


def refused():
    """Returns the code of the error for each scaled loss."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, shards=5, progress="off", checkpoint_every="off")
    found = {}
    for name, scale in SCALED.items():
        model, _, loader, _ = parts(accelerator)
        batches = iter(loader)
        x, y = next(batches)
        try:
            accelerator.backward(scale(x, y, nn.functional.cross_entropy(model(x), y)))
        except LockstepError as error:
            found[name] = error.code
        else:
            found[name] = None
    return found


def meant():
    """Returns the weights after a step with each loss, the first of which has no size in it."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, shards=5, progress="off", checkpoint_every="off")
    found = []
    for make in (lambda x, y, outputs: (rows(outputs, y).mean(), None), *MEANT.values()):
        model, optimizer, loader, _ = parts(accelerator, batch_size=26)  # all samples: shards of six and five
        accelerator.unwrap_model(model)[3].p = 0.0
        batches = iter(loader)
        x, y = next(batches)
        loss, weight = make(x, y, model(x))
        accelerator.backward(loss, weight=weight)
        optimizer.step()
        found.append([*torch.cat([each.detach().flatten() for each in model.parameters()]).tolist(), loss.item()])
    return found
