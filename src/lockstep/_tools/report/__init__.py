"""Reports as one HTML file each: pure functions from what was read of a directory to the text of a
page."""
