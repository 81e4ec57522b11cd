"""The foundation of all other packages: errors, settings, files, names."""
