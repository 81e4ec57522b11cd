"""Scripts that are started on several nodes, and what their output says.

``TRAIN EPOCHS PACE_S`` sleeps so long at every shard, until there is a file ``hurry``.
"""

TRAIN = """
import os, sys, time, torch, lockstep
team = lockstep.join()
inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
model, optimizer, loader = team.prepare(model, optimizer, loader)
step = 0
for epoch in team.epochs(int(sys.argv[1])):
    for batch in loader:
        step += 1
        for x, y in batch.shards:
            team.backward((model(x) - y).square().mean())
            if not os.path.exists("hurry"):
                time.sleep(float(sys.argv[2]))
            with open("steps", "a") as file:
                file.write(f"{team.rank} {team.world_size} {os.getpid()}\\n")
        optimizer.step()
        optimizer.zero_grad()
# (Python's hash of numbers is the same in every process, unlike that of text.)
weights = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
print(f"weights {hash(tuple(weights))} of rank {team.rank} of {team.world_size}", flush=True)
"""

TALK = """
import json, os, torch.distributed as dist, torch
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
names = ("RANK", "WORLD", "LOCAL_", "GROUP", "ROLE", "MASTER", "TORCHELASTIC")
found = {name: value for name, value in os.environ.items() if name.startswith(names)}
os.write(1, (json.dumps({**found, "sum": one.item()}) + "\\n").encode())
dist.barrier()
dist.destroy_process_group()
"""

FAILS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
start, one = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), torch.ones(1)
for step in range(5):
    dist.all_reduce(one)
    if start < int(sys.argv[2]) and dist.get_rank() == int(sys.argv[1]) and step == 3:
        raise ValueError(f"boom {start}")
os.write(1, f"done {dist.get_rank()} after start {start}\\n".encode())
dist.barrier()
dist.destroy_process_group()
"""


def read_weights(*outputs):
    """The one name of the weights that all ranks have printed."""
    found = {line.split()[1] for out in outputs for line in out.splitlines() if line.startswith("weights")}
    assert len(found) == 1, outputs
    return found.pop()


def read_steps(directory):
    """What TRAIN has left there at every shard of every step: rank, world size and process."""
    path = directory / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [tuple(map(int, line.split())) for line in lines]
