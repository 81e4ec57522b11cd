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
# Four ports, counted

<!-- Written by tests/docs/ports.py from examples/ports: change the scripts, and run it. -->

Four scripts for one device, each ported to accelerate as its documentation shows, and to lockstep. Counted are lines that are
added or changed, if only by their indentation; blank lines and deleted ones are not.

| script | its lines | to accelerate | of these `# resume` | to lockstep |
|---|---:|---:|---:|---:|
"""
TAIL = """
- **Resuming**: accelerate's ports resume at the end of an epoch (nanoGPT's: at an evaluation), on as many processes as before.
  lockstep's resume after any step, on any number of processes, to the same bits. Without checkpoints, accelerate takes fewer
  lines.
- **The batch**: on four processes, accelerate's train with four times the batch; lockstep's train with the same.
- **The loss** of a step is rank 0's with accelerate (MNIST's), the global batch's with lockstep.

What keeps the ports to lockstep short:

| line | in place of |
|---|---|
| `for x, y in evaluation.shards` | `no_grad`, `eval()`, `train()`, sums, gathering ([loop.md](../loop.md#evaluation)) |
| `team.best(accuracy)` | comparing, and saving the best weights |
| `if epoch - team.best_epoch == 3: break` | a counter, to be saved as well ([early stopping](early-stopping.md)) |
| `team.log(loss=batch["loss"])` | printing every tenth step: the progress display shows it |
| `team.save(value, path)` | `torch.save` on rank 0 |
"""


@dataclass(frozen=True)
class Port:
    """What a port changes in the plain script."""

    plain: list[str]
    port: list[str]

    @property
    def changed(self) -> list[str]:
        """The lines that it adds or changes."""
        matcher = difflib.SequenceMatcher(None, self.plain, self.port, autojunk=False)
        runs = (self.port[first:last] for tag, _, _, first, last in matcher.get_opcodes() if tag != "equal")
        return [line for run in runs for line in run]

    @property
    def num_to_resume(self) -> int:
        """How many of these are there to save and load checkpoints."""
        return sum(line.endswith(TO_RESUME) for line in self.changed)

    def difference(self) -> str:
        """A diff, with a line of context."""
        lines = [*difflib.unified_diff(self.plain, self.port, n=1, lineterm="")][2:]
        return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


def script(name, kind):
    """The text of a script."""
    return (SCRIPTS / f"{name}_{kind}.py").read_text()


def port(name, kind):
    """A port of a script. Blank lines are left out."""
    return Port(*([line for line in script(name, which).splitlines() if line.strip()] for which in ("plain", kind)))


def page():
    """The page's text."""
    rows, sections = [], []
    for name, title in NAMES.items():
        accelerate, lockstep = port(name, "accelerate"), port(name, "lockstep")
        links = [f"[{kind}](../../examples/ports/{name}_{kind}.py)" for kind in ("plain", "accelerate", "lockstep")]
        anchor = title.lower().replace(" ", "-").replace(",", "").replace("'", "")
        counts = (len(accelerate.plain), len(accelerate.changed), accelerate.num_to_resume, len(lockstep.changed))
        rows.append(f"| [{title}](#{anchor}) | {' | '.join(map(str, counts))} |\n")
        sections.append(f"\n## {title}\n\nWhole scripts: {', '.join(links)}\n")
        for kind, each in (("accelerate", accelerate), ("lockstep", lockstep)):
            sections.append(f"\nTo {kind}:\n\n```diff\n{each.difference()}\n```\n")
    return HEAD + "".join(rows) + TAIL + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page())
