"""The plan of what each process computes: pure functions of integers, without communication,
randomness or state."""
