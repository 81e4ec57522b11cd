"""The machine: its cores, threads and addresses, and PyTorch's TCP stores on it."""
