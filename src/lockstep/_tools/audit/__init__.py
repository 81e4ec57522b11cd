"""Audits: one shard is computed twice, by two ranks, and the gradients are compared to the bit."""
