"""accelerate's nlp_example with two lines changed, the import and the loop over epochs, that is
killed at a chosen step.

As a script: ``interrupted_example.py STEP``, under any launcher; 0: to its end. Its last line is
what ``run`` returns, in JSON."""

import json
import sys
import types
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import runs_example
from resumed import die

NAME = "nlp_example"
CHANGES = {
    "in range(num_epochs)": "in accelerator.epochs(num_epochs)",
    "mixed_precision=args.mixed_precision)": 'mixed_precision=args.mixed_precision, run_dir="run", checkpoint_every=1)',
    "optimizer.zero_grad()\n": "optimizer.zero_grad()\n                stop(accelerator)\n",
}


def run(kill_at):
    """The lines of the last epochs that this launch has printed, and the digest of the weights."""
    text = (runs_example.EXAMPLES / f"{NAME}.py").read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)

    def stop(accelerator):
        if accelerator.team.step == kill_at:
            die(accelerator)

    sys.path.insert(0, str(runs_example.EXAMPLES))

    def make():
        example = types.ModuleType(NAME)
        example.stop = stop
        exec(compile(text, NAME, "exec"), vars(example))
        return example

    return runs_example.run_module(make, {"num_epochs": 4}, {})


if __name__ == "__main__":
    printed, digests = run(int(sys.argv[1]))
    print("ended", json.dumps([printed, digests]))
