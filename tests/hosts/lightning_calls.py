"""What the tests of Lightning run in other processes: this one need not import it."""


def run_row(name, root):
    import lightning_rows

    return lightning_rows.run_row(name, root)


def run_refusal(name, root):
    import lightning_refusals

    return lightning_refusals.run_refusal(name, root)


def missing():
    from lockstep.integrations.lightning import host

    return host.missing()
