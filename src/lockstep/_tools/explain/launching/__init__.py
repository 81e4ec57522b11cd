"""The launcher's observer, which explains a launch, and the observer in each of its processes."""
