"""Its entry point is wrapped in torchelastic's @record, as torchrun's manual advises; rank 1 fails."""

import os

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError(f"no such data set ({os.environ['TORCHELASTIC_RESTART_COUNT']} restarts)")
    dist.barrier()


if __name__ == "__main__":
    main()
