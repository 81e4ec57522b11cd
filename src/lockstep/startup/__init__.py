"""What is checked and said when a run starts: do the ranks and the machines fit, and what is it that runs?"""
