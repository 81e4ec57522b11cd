"""lockstep beneath other libraries' trainers. Nothing of lockstep imports it."""
