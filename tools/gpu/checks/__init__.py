"""The programs that stages run, each a separate process: ``python -m gpu.checks.tree --help``. They
need lockstep and PyTorch."""
