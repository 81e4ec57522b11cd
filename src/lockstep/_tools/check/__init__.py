"""Reading a script's loop without running it: what one place of it writes and another reads. Source
in, findings out."""
