"""The tools that look at runs: one folder per tool, with its command. Nothing outside imports a
tool by name."""
