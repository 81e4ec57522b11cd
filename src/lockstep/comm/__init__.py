"""How the processes of a run meet, and what they can say to each other."""
