"""Explains PyTorch's cryptic errors, with the names that they lack
(``explanation.explain_error``)."""
