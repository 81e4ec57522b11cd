"""A run while it goes on, in the terminal."""
