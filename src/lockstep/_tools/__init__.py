"""What looks at runs: each tool in a folder of its own, with its command; nothing outside imports
them by name."""
