"""Audits: one shard is computed twice, by two ranks, and the gradients must be bit-identical."""
