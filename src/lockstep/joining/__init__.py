"""How a process comes to its run, and which run that is."""
