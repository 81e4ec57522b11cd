"""The files of a checkpoint, as a command shows and exports them."""
