"""What somebody who has a CUDA GPU runs first: a series of stages, and one report to send. ``python
tools/gpu --help``.

The series itself needs nothing but Python: what is missing is for it to say.
"""
