"""The directory of a run: its name, its birth, and who may write in it."""
