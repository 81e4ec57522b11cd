"""``lockstep tune``: with how many loader workers a script's steps are fastest."""
