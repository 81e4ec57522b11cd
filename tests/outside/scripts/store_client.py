"""A client of its launcher's store, as torchft's Manager is: it opens none itself."""

import os
from datetime import timedelta

from torch.distributed import TCPStore

store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=30))
rank = os.environ["RANK"]
store.set(f"hello/{rank}", rank)
store.wait([f"hello/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
print("served", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
store.add("done", 1)
while store.add("done", 0) < int(os.environ["WORLD_SIZE"]):  # rank 0 serves it: nobody leaves earlier
    pass
