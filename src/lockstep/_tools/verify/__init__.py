"""Whether runs on other numbers of processes compute the same, and where not."""
