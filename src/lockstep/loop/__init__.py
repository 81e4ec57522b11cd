"""The loop: epochs, passes and steps, the phases of a step, what ranks tell each other in one, and how objects come to it."""
