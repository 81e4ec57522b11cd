"""What every step of a run computed, as digests; and whether two runs computed the same."""
