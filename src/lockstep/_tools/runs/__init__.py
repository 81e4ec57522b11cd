"""What the files of runs tell of them."""
