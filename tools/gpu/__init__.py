"""A series of stages to run first on a machine with a CUDA GPU, with one report to send: ``python
tools/gpu --help``.

The series needs nothing but Python, so that it can report what else is missing.
"""
