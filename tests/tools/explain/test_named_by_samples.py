"""What only samples tell, of real launches: the rank, its line and the cause, in the file of
``--reports``."""

import json
import time

import pytest

from lockstep._base.reports import SLOW, WAITING

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

BEGIN = """
import ctypes, os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, model = dist.get_rank(), torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train():
    time.sleep(0.02)
    model(torch.randn(8, 32)).mean().backward()
    optimizer.step()
"""
SLOW_LINE = """
def load_index():  # once, before the loop
    time.sleep(2 if rank == 1 else 0)
def draw_picture():
    time.sleep(0.06 if rank == 1 else 0)
load_index()
while True:
    train()
    draw_picture()
"""
SLOW_DISK = """
fsync = os.fsync
if rank == 1:
    os.fsync = lambda fd: (time.sleep(4), fsync(fd))
def save():
    with open(f"state-{rank}", "wb") as file:
        torch.save(model.state_dict(), file)
        os.fsync(file.fileno())
while True:
    for _ in range(20):
        train()
    save()
"""
HOLDS_GIL = """
for _ in range(20):
    train()
if rank == 0:
    time.sleep(2)  # rank 1 waits for it in the collective: that is what its black box says last
dist.barrier()
def call_extension():
    ctypes.PyDLL(None).sleep(600)
if rank == 1:
    call_extension()
dist.barrier()
"""
CASES = {
    "line": (SLOW_LINE, SLOW, "script", "draw_picture"),
    "disk": (SLOW_DISK, SLOW, "storage", "save"),
    "gil": (HOLDS_GIL, WAITING, "holds_gil", "call_extension"),
}


def test_a_slow_line_a_slow_disk_and_c_code_that_holds_the_gil_are_named(start_launcher, tmp_path):
    for name, (source, *_) in CASES.items():
        (tmp_path / f"{name}.py").write_text(BEGIN + source)
        start_launcher("--nproc-per-node", 2, "--reports", f"{name}.jsonl", f"{name}.py")
    deadline, found, reported = time.monotonic() + 120, set(), {}
    while len(found) < len(CASES) and time.monotonic() < deadline:
        time.sleep(0.5)
        for name in CASES:
            if (file := tmp_path / f"{name}.jsonl").exists() and (lines := file.read_text().splitlines()):
                reported[name] = lines
                # The first may be another: with too little processor time, C code that holds the
                # GIL is proven later than that the rank does not answer.
                if any(is_expected(json.loads(line), *CASES[name][1:]) for line in lines):
                    found.add(name)
    assert [name for name in CASES if name not in found] == [], reported


def is_expected(report, kind, cause, function):
    place = report["places"].get("1", "")
    return (report["kind"], report["ranks"], report["cause"]) == (kind, [1], cause) and place.endswith(f" in {function}")
