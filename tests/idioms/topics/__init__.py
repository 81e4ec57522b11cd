"""The idioms, by topic: every function with a promise is one."""
