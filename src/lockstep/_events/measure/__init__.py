"""What a run did, written down while it runs."""
