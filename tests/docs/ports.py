"""Writes docs/how-to/ports.md from examples/ports: python tests/docs/ports.py."""

import difflib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "ports"
PAGE = ROOT / "docs" / "how-to" / "ports.md"
NAMES = {"cnn": "CNN, early stopping", "mnist": "MNIST's shape", "nanogpt": "nanoGPT's shape", "lm": "Causal LM, fine-tuned"}
TO_RESUME = "  # resume"
HEAD = """\
# Ports compared: accelerate and lockstep

<!-- Written by tests/docs/ports.py from examples/ports: change the scripts, and run it. -->

This page compares four scripts for one device with their ports to accelerate and to lockstep. Use
it to see how many lines a port changes, and which. The ports to accelerate follow its
documentation. To port your own script, see [from a single GPU](one-gpu.md) or [from
accelerate](accelerate.md).

The table counts lines that are added or changed, also if only their indentation changes. It does
not count blank and deleted lines.

| script | its lines | to accelerate | of these `# resume` | to lockstep |
|---|---:|---:|---:|---:|
"""
TAIL = """
- **Resuming**: the ports to accelerate resume at the end of an epoch (nanoGPT: at an evaluation),
  on the same number of processes as before. The ports to lockstep resume after any step, on any
  number of processes, with bit-identical results. Without checkpoints, accelerate takes fewer
  lines.
- **Batch**: on four processes, accelerate trains with four times the batch, and lockstep with the
  same batch.
- **Loss** of a step: accelerate prints the loss of rank 0 (MNIST), and lockstep the loss of the
  global batch.

These lines keep the ports to lockstep short:

| line | replaces |
|---|---|
| `for x, y in evaluation.shards` | `no_grad`, `eval()`, `train()`, sums, gathering ([evaluation](../loop.md#evaluation)) |
| `team.best(accuracy)` | comparing, and saving the best weights |
| `if epoch - team.best_epoch == 3: break` | a counter, which must be saved too ([early stopping](early-stopping.md)) |
| `team.log(loss=batch["loss"])` | printing every tenth step: the progress display shows it |
| `team.save(value, path)` | `torch.save` on rank 0 |
"""


@dataclass(frozen=True)
class Port:
    """The differences between a port and the plain script."""

    plain: list[str]
    port: list[str]

    @property
    def changed(self) -> list[str]:
        """The lines that the port adds or changes."""
        matcher = difflib.SequenceMatcher(None, self.plain, self.port, autojunk=False)
        runs = (self.port[first:last] for tag, _, _, first, last in matcher.get_opcodes() if tag != "equal")
        return [line for run in runs for line in run]

    @property
    def num_to_resume(self) -> int:
        """The number of changed lines that save and load checkpoints."""
        return sum(line.endswith(TO_RESUME) for line in self.changed)

    def difference(self) -> str:
        """Returns a diff with one line of context."""
        lines = [*difflib.unified_diff(self.plain, self.port, n=1, lineterm="")][2:]
        return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


def script(name, kind):
    """Returns the text of a script."""
    return (SCRIPTS / f"{name}_{kind}.py").read_text()


def port(name, kind):
    """Returns a port of a script, without blank lines."""
    return Port(*([line for line in script(name, which).splitlines() if line.strip()] for which in ("plain", kind)))


def page():
    """Returns the text of the page."""
    rows, sections = [], []
    for name, title in NAMES.items():
        accelerate, lockstep = port(name, "accelerate"), port(name, "lockstep")
        links = [f"[{kind}](../../examples/ports/{name}_{kind}.py)" for kind in ("plain", "accelerate", "lockstep")]
        anchor = title.lower().replace(" ", "-").replace(",", "").replace("'", "")
        counts = (len(accelerate.plain), len(accelerate.changed), accelerate.num_to_resume, len(lockstep.changed))
        rows.append(f"| [{title}](#{anchor}) | {' | '.join(map(str, counts))} |\n")
        sections.append(f"\n## {title}\n\nComplete scripts:\n{links[0]},\n{links[1]},\n{links[2]}\n")
        for kind, each in (("accelerate", accelerate), ("lockstep", lockstep)):
            sections.append(f"\nTo {kind}:\n\n```diff\n{each.difference()}\n```\n")
    return HEAD + "".join(rows) + TAIL + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
