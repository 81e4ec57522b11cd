"""``lockstep tune``: how a script's loader keeps up with its steps; and ``--tuned FILE``, which applies what was found."""
