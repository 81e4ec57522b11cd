"""What everything stands on: errors, settings, files, names."""
