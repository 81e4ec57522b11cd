"""Trainers of other libraries on lockstep's engine, one module for each library.

No other part of lockstep imports these modules, so lockstep works without the libraries. Each
module shows one logical process to its library: the library's code runs in full on every rank, and
lockstep adds the shards, the sums over processes, the checkpoints and the resume below it.
"""

__all__: list[str] = []
