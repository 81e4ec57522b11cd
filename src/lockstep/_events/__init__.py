"""What a run has recorded: events and digests, as JSON lines. One schema, one writer, one
reader."""
