"""What lockstep asks of the machine: its cores, its threads, its addresses, and the TCP stores of PyTorch on it."""
