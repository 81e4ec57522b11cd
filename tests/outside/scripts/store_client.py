"""A client of its launcher's store, as torchft's Manager is: it opens none itself."""

import os
import time
from datetime import timedelta

from torch.distributed import TCPStore

store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=30))
rank = os.environ["RANK"]
store.set(f"hello/{rank}", rank)
store.wait([f"hello/{other}" for other in range(int(os.environ["WORLD_SIZE"]))])
if rank == "0":
    store.set("pid", str(os.getpid()))
else:
    first = int(store.get("pid"))
    while os.path.exists(f"/proc/{first}"):  # rank 0 ends before the others
        time.sleep(0.01)
    store.set("after", rank)
print("served", os.environ["TORCHELASTIC_USE_AGENT_STORE"])
