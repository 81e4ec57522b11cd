"""What ``team.prepare`` hands back: the user's models, optimizers and schedules, made to act once a step."""
