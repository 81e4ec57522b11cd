"""Runs one of accelerate's examples in this process. Returns its output and the trained models."""

import contextlib
import hashlib
import importlib
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from lockstep._base.errors import LockstepError
from lockstep.integrations.accelerate import Accelerator

EXAMPLES = Path(__file__).parent / "examples"


def run_example(name, config, options):
    """The lines that the example has printed on this rank, and the digests of the models that it
    has prepared last."""
    sys.path.insert(0, str(EXAMPLES))
    return run_module(lambda: importlib.import_module(name), config, options)


def run_module(make, config, options):
    """The same of the module that ``make`` returns."""
    torch.set_num_threads(1)
    ended, digests, texts = Accelerator.end_training, [], io.StringIO()

    def end_training(self):
        weights = b"".join(tensor.numpy().tobytes() for model in self._models for tensor in model.state_dict().values())
        digests.append(hashlib.sha256(weights).hexdigest()[:16])
        ended(self)

    Accelerator.end_training = end_training
    arguments = SimpleNamespace(**{"cpu": True, "mixed_precision": None, **options})
    with contextlib.redirect_stdout(texts):
        make().training_function({"lr": 0.02, "num_epochs": 2, "seed": 42, "batch_size": 16, **config}, arguments)
    return [line for line in texts.getvalue().splitlines() if re.match(r"epoch \d+:|Average", line)], digests


def refused(name, config, options):
    """Returns the code of the error that ends the example."""
    try:
        run_example(name, config, options)
    except LockstepError as error:
        print(error, file=sys.stderr, flush=True)
        return error.code
    return None
