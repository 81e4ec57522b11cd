"""What the tests of Lightning run in other processes: this one need not import it."""


def run_row(name, root):
    import lightning_rows

    return lightning_rows.run_row(name, root)


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
