"""A process that has imported what tests need, but nothing of lockstep, and forks a pytest for each
request: the imports take longer than most tests. The fork servers of tests are its forks, too
(``forked_python``).

A request is a line of JSON, ``{"args": [...], "output": FILE, "limit_s": SECONDS}``, and so is its
answer, ``{"status": STATUS}``: None for a pytest that took longer than its limit.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback

import descendants
import forked_python
import numpy  # noqa: F401
import pytest
import torch
import torch._dynamo
import torch.distributed
import torch.utils.data  # noqa: F401
from hypothesis import Phase, settings

HOSTS = ("lightning.pytorch", "transformers.trainer", "trl.trainer.sft_trainer", "torchmetrics.classification")
"""Seconds each, in every test of an integration."""
IMPORTED = "Module already imported so cannot be rewritten"  # Hypothesis is, on purpose


def run(args: list[str], output: str, limit_s: float) -> int | None:
    """Runs pytest with these arguments, ends all that it has started, and returns its status."""
    parent = os.getppid()
    pid = os.fork()
    if not pid:
        become_pytest(args, output)
    deadline = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline and os.getppid() == parent:
            # also of those whose parent is gone, as an init process does
            ended, status = descendants.next_ended()
            if ended == pid:
                return os.waitstatus_to_exitcode(status)
            if not ended:
                time.sleep(descendants.LOOK_S)
        return None
    finally:
        descendants.end_all()


def become_pytest(args: list[str], output: str) -> None:
    status = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        forked_python.install()
        sys.argv = ["pytest", *args]
        status = int(pytest.main(["-W", f"ignore:{IMPORTED}:pytest.PytestAssertRewriteWarning", *args]))
    except forked_python.Command:
        raise
    except BaseException:  # nobody is above
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def main() -> None:
    # A failure is looked for, not the smallest: shrinking takes 20 s.
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    settings.register_profile("mutants", phases=phases, deadline=None)
    settings.load_profile("mutants")
    descendants.keep_orphans()
    for name in HOSTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is imported need not be looked through in each of them
    assert not any(name.split(".")[0] == "lockstep" for name in sys.modules)
    answers = os.fdopen(os.dup(1), "w")
    for request in sys.stdin:
        answers.write(json.dumps({"status": run(**json.loads(request))}) + "\n")
        answers.flush()


if __name__ == "__main__":
    try:
        main()
    except forked_python.Command as raised:
        command = raised
    else:
        sys.exit()
    command.run()  # with nothing on its stack
