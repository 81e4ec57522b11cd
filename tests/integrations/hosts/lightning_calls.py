"""What the tests of Lightning run in other processes: this one need not import it."""

import os


def run_row(name, root):
    import lightning_rows

    return lightning_rows.run_row(name, root)


def run_row_by_torchrun(name, root, port):
    """In a process with torchrun's variables, whose agent has a store at this port."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK")
    kept = {name: os.environ[name] for name in (*names, "PATH", "HOME") if name in os.environ}
    os.environ.clear()
    os.environ.update(kept, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    os.environ.update(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0", TORCHELASTIC_USE_AGENT_STORE="True")
    return run_row(name, root)


def run_refusal(name, root):
    import lightning_refusals

    return lightning_refusals.run_refusal(name, root)


def fit(how, root, run_dirs):
    import lightning_resumed

    return lightning_resumed.fit(how, root, run_dirs)


def missing():
    from lockstep.integrations.lightning import _host as host

    return host.missing()


def missing_where_gradients_are_zeroed_first():
    from lightning.pytorch.loops.optimization.automatic import Closure

    from lockstep.integrations.lightning import _host as host

    def closure(self):
        self._zero_grad_fn()
        output = self._step_fn()
        self._backward_fn(output)

    own, Closure.closure = Closure.closure, closure
    try:
        return host.missing()
    finally:
        Closure.closure = own
