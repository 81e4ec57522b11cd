"""``lockstep doctor``: whether this machine, and the machines together, are fit for a run.

``table`` lists the checks of one machine. Each is two functions: one looks, and returns values; one judges them, is pure, and
returns a ``Finding``. ``examine`` runs them. Checks of several processes (``exchange``) and of several hosts (``over_hosts``)
need PyTorch, and run in workers; ``loader`` runs the user's script for a while.
"""
