"""Why two runs computed something else: what watches a run, and what draws the conclusion."""
