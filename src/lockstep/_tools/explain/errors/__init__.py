"""PyTorch's cryptic errors in words, with the names that they lack: see ``explanation.explain_error``."""
