"""The rendezvous of a run's processes, and communication between them."""
