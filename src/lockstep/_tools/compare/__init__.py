"""The same training in several ways, measured side by side."""
