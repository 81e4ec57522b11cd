"""Short runs of a script, started to be looked at."""
