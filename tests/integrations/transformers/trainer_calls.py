"""Calls in processes that have transformers, by names: its import takes seconds, which collecting
tests need not wait for."""

import importlib


def call(module, function, *args):
    """The result of a function of a module beside this one."""
    return getattr(importlib.import_module(module), function)(*args)
