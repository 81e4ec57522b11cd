"""A starter of one's own: it spawns processes, tells each its rank in the environment, and runs the script named first."""

import os
import runpy
import socket
import sys

import torch.multiprocessing as mp


def start(rank, size, port, command):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(start, args=(2, port, sys.argv[1:]), nprocs=2)
