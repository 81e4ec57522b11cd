"""The training loop: epochs, passes, steps and phases, the numbers that ranks exchange, and
``team.prepare``."""
