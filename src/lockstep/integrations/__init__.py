"""Other libraries' trainers on lockstep's engine, a module for each library. Nothing in lockstep
imports them."""

__all__: list[str] = []
