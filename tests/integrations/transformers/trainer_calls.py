"""Calls in processes that have transformers, by names: its import takes seconds, which collecting
tests need not wait for."""

import importlib


def call(module, function, *args):
    """Returns the result of a function of a module in this directory."""
    return getattr(importlib.import_module(module), function)(*args)
