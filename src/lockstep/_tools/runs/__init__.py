"""Lists runs, from their files."""
