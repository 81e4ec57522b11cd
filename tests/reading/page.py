"""Writes docs/check.md from the explanations: python tests/reading/page.py."""

from pathlib import Path

from lockstep.tools.check.explanations import EXPLANATIONS, explain
from lockstep.tools.check.findings import RULES

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
HEAD = """\
# Check a script's loop

<!-- Written by tests/reading/page.py from src/lockstep/tools/check/explanations.py: change that, and run it. -->

```
lockstep check train.py
```

reads the training loops of a script, and of the modules beside it that it imports, without running or importing anything.
It finds what no check at run time can see: what **the script itself writes in one place of the loop and reads in another**.

```
train.py:20:9: LS102 `correct` counts the shards of this process only, and is read in line 26
    write: inside: batch.add(correct=...), a mean over the global batch; outside: batch["correct"]. ...
```

| codes | the answer | examples |
|---|---|---|
| LS1.. | differs on another number of processes | a counter inside, the last shard's loss, attributes set in `forward` |
| LS2.. | differs after a resume: in no checkpoint | `best`, `bad`, `lr`, `enumerate(loader)`, averages of the weights |
| LS3.. | is not what was meant | `loss.backward()` inside, a model made before `join()` |

A run reads its script, too, on rank 0 when it starts: findings of LS1 and LS3 are warnings, and all names of LS2 are listed in
one line, again on every resume. [`lockstep verify`](verify.md) proves by running what this reads.

- **Right** is what goes through `batch.add`, `team.all_gather_object`, `team.all_reduce`, `team.per_shard`, `team.state`,
  `team.register` or `team.prepare`. So are timers, what is printed inside, and caches that every process would fill alike.
- **Perhaps**: nothing but output depends on it, or too little is known. `check` lists it, a run does not.
- **Accept a line** with a comment at its end: `# lockstep: ok`, or `# lockstep: ok LS102`.
- **Exit status**: 0 if nothing certain is found, 1 if something is, 2 if a script cannot be read. `--json` is for programs;
  `--explain LS102` prints a section from below.

It follows the order of execution, branches, functions, closures, generators and classes of the script and of the modules
beside it; not installed packages, and not what is decided by values at run time. How much of a corpus of loops it finds:
[RESULTS.md](../benchmarks/RESULTS.md#reading-a-loop)."""


def page():
    """The page's text."""
    return (
        "\n\n".join([HEAD, *(f"## {code}: {RULES[code].title}\n\n{explain(code).rstrip()}" for code in EXPLANATIONS)]) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
