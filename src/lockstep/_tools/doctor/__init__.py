"""``lockstep doctor``: whether this machine, and the machines together, are fit for a run.

``table`` lists the checks of one machine. Each consists of two functions: ``look_at_...`` returns
values, and ``judge_...``, which is pure, turns them into a ``Finding``. ``examine`` runs them. The
checks across processes (``exchange``) and across hosts (``over_hosts``) need PyTorch, and run in
workers.
"""
