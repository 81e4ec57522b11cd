"""The digest journal of a run, the first step in which two runs differ, and steps of a run taken
again."""
