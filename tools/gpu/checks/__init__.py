"""What stages run, each a program of its own: ``python -m gpu.checks.tree --help``. They need
lockstep and PyTorch."""
