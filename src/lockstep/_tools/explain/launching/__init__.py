"""What the launcher's observer says of a launch, and what it leaves in each of its processes."""
