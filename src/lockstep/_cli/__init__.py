"""The command line: each command parses its options, builds a config, and makes one call."""
