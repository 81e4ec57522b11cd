"""The directory of a run: its name, its birth file, and its lock."""
