"""The command line: each verb parses, makes a config, and makes one call."""
