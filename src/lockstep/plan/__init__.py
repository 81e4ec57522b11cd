"""Who computes what: pure functions of integers. Nothing here communicates, draws or keeps state."""
