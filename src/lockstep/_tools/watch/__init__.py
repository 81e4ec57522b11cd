"""Shows an active run in the terminal."""
