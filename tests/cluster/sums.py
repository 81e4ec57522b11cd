"""A script of others: every process brings its rank plus one, and says the sum and where it was."""

import os
import socket

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
mine = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(mine)
assert (mine == mine[0]).all()
told = f"{socket.gethostname()} rank {os.environ['RANK']} of {dist.get_world_size()}: {mine[0].item():g}\n"
os.write(1, told.encode())  # at once, so that lines of several processes stay apart
dist.barrier()  # nobody leaves before all have said it
dist.destroy_process_group()
