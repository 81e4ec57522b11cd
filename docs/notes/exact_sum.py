"""Prototypes of a bit-exact gradient sum, timed against stock DDP and checked for equal bits. Results: exact-sum.md.

A contender is ddp, own, coll or hook, with settings after a colon: own:lag=1,bucket_mib=4,piece_kib=256
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import cProfile
import ctypes
import hashlib
import io
import multiprocessing
import os
import pstats
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exact_sum_engines import Arena, HookExchange, OwnBuckets, OwnCollectives, block
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# Processes


def start(world: int, work: Callable[..., Any], *args: Any, spaces: list[str] | None = None) -> list[Any]:
    """Run ``work(rank, world, *args)`` in forked processes that have met; returns what each returned."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as private:
        pipes = [fork.Pipe() for _ in range(world)]
        children = [
            fork.Process(target=_child, args=(rank, world, private, pipes[rank][1], spaces, work, args))
            for rank in range(world)
        ]
        for child in children:
            child.start()
        results = []
        try:
            for rank, (reader, writer) in enumerate(pipes):
                writer.close()
                try:
                    results.append(reader.recv())
                except EOFError:
                    raise SystemExit(f"rank {rank} failed") from None
        finally:
            for child in children:
                child.join(5 if len(results) == world else 0.5)
                if child.is_alive():
                    child.kill()
        return results


def _child(
    rank: int, world: int, private: str, pipe: Any, spaces: list[str] | None, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if spaces:
        with Path("/var/run/netns", spaces[rank]).open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), 0x40000000):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = "veth0"
    store = dist.FileStore(f"{private}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    pipe.send(work(rank, world, *args))
    if world > 1:
        dist.barrier()
    dist.destroy_process_group()


# Models


class Residual(nn.Module):
    """A residual layer of a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run the layer."""
        return x + torch.relu(self.linear(self.norm(x)))


def convnet(widths: list[int], strides: list[int]) -> nn.Sequential:
    """A plain convolutional net."""
    layers: list[nn.Module] = []
    for wide_in, wide_out, stride in zip([3, *widths], widths, strides, strict=False):
        layers += [nn.Conv2d(wide_in, wide_out, 3, stride, 1, bias=False), nn.BatchNorm2d(wide_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model and one process's batch."""
    torch.manual_seed(0)
    if name == "0.5M":
        model: nn.Module = convnet([32, 64, 64, 128, 256], [1, 2, 1, 2, 2])
        return model, torch.randn(16, 3, 16, 16), torch.randint(10, (16,))
    if name == "25M-conv":
        model = convnet([64, 128, 256] + [512] * 11, [1, 2, 2, 2] + [1] * 10)
        return model, torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    width, depth = {"5M": (512, 18), "25M": (1024, 23)}[name]
    model = nn.Sequential(nn.Linear(64, width), *[Residual(width) for _ in range(depth)], nn.Linear(width, 10))
    return model, torch.randn(32, 64), torch.randint(10, (32,))


# Contenders


def settings_of(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``own:lag=1,api=dist``."""
    kind, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, value = item.split("=")
        settings[key] = value if key in ("api", "fill") else float(value) if key.endswith("mib") else int(value)
    return kind, settings


class Bench:
    """All contenders of one process: step functions by name. Those with own buckets share one model and its memory."""

    def __init__(self, rank: int, world: int, model: nn.Module, x: Tensor, y: Tensor, contenders: list[str]) -> None:
        self.rank, self.world, self.x, self.y = rank, world, x, y
        self.steps: dict[str, Callable[[], None]] = {}
        self.engines: dict[str, OwnBuckets] = {}
        self.active: OwnBuckets | None = None
        shared: tuple[nn.Module, torch.optim.Optimizer] | None = None
        arena = Arena()
        for text in contenders:
            kind, settings = settings_of(text)
            if kind in ("ddp", "hook"):
                ddp = DistributedDataParallel(copy.deepcopy(model), **({} if kind == "hook" else settings))
                hook = HookExchange(ddp, rank, world, Arena()) if kind == "hook" else None
                self.steps[text] = self._ddp_step(ddp, hook)
                continue
            if shared is None:
                mine = copy.deepcopy(model)
                shared = mine, torch.optim.SGD(mine.parameters(), lr=0.01, momentum=0.9)
                for index, p in enumerate(mine.parameters()):
                    p.register_post_accumulate_grad_hook(self._hook(index))
            engine_class = OwnBuckets if kind == "own" else OwnCollectives
            engine = engine_class(shared[0].parameters(), rank, world, world, arena, **settings)
            self.engines[text] = engine
            self.steps[text] = self._own_step(*shared, engine)

    def _hook(self, index: int) -> Callable[[Any], None]:
        def hook(p: Any) -> None:
            self.active.on_grad(index, p)  # type: ignore[union-attr]

        return hook

    def _ddp_step(self, ddp: DistributedDataParallel, hook: HookExchange | None) -> Callable[[], None]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
        if hook:
            hook.total = float(self.world)

        def step() -> None:
            nn.functional.cross_entropy(ddp(self.x), self.y).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def _own_step(self, model: nn.Module, optimizer: torch.optim.Optimizer, engine: OwnBuckets) -> Callable[[], None]:
        def step() -> None:
            self.active = engine
            engine.begin_step(float(self.world))
            loss = nn.functional.cross_entropy(model(self.x), self.y)
            engine.begin_shard(self.rank, 1.0)
            loss.backward()
            engine.end_shard()
            engine.finish()
            optimizer.step()
            optimizer.zero_grad()

        return step


def race(rank: int, world: int, name: str, contenders: list[str], rounds: int, steps: int, profile: str) -> Any:
    """Let the contenders take turns; seconds a step for each, by round, and where the time of own engines went."""
    model, x, y = make(name)
    bench = Bench(rank, world, model, x, y, contenders)
    order = random.Random(0)
    seconds: dict[str, list[float]] = {text: [] for text in contenders}
    busy: dict[str, list[float]] = {text: [] for text in contenders}
    profiler = cProfile.Profile()
    for turn in range(rounds + 1):
        for text in order.sample(contenders, len(contenders)):
            step = bench.steps[text]
            step()  # brings memory and caches back
            if turn == 0:
                step()
                continue
            dist.barrier()
            if text in bench.engines and turn == 1:
                bench.engines[text].seconds = dict.fromkeys(bench.engines[text].seconds, 0.0)
            if profile == text and rank == 0:
                profiler.enable()
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(steps):
                step()
            seconds[text].append((time.perf_counter() - began) / steps)
            busy[text].append((time.process_time() - cpu) / steps)
            profiler.disable()
    if profile and rank == 0:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(18)
    per_step = {
        text: {key: value / (rounds * (steps + 1) - 1) for key, value in engine.seconds.items()}
        for text, engine in bench.engines.items()
    }
    return seconds, per_step, busy


def show(name: str, world: int, results: list[Any], contenders: list[str], *, detail: bool) -> None:
    """Print the table of a race: of each turn, the slowest rank."""
    turns = {text: [max(turn) for turn in zip(*(r[0][text] for r in results), strict=True)] for text in contenders}
    num_rounds = len(turns[contenders[0]])
    print(f"\n{name}, {world} processes, {num_rounds} rounds (ratio: median over rounds, quartiles; cpu: all ranks)")
    cpu = {text: statistics.median(map(sum, zip(*(r[2][text] for r in results), strict=True))) for text in contenders}
    for text in contenders:
        ratios = sorted(a / b for a, b in zip(turns[text], turns[contenders[0]], strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios * 3)
        where = results[0][1].get(text, {})
        parts = " ".join(f"{key} {value * 1000:.1f}" for key, value in where.items()) if detail else ""
        wall = f"{statistics.median(turns[text]) * 1000:8.1f} ms  {middle:5.3f} [{low:5.3f} {high:5.3f}]"
        print(f"  {text:50} {wall}  cpu {cpu[text] * 1000:7.1f} ms {cpu[text] / cpu[contenders[0]]:5.3f}  {parts}")
    sys.stdout.flush()


# Correctness


class Branchy(nn.Module):
    """A small net with BatchNorm-free convolutions and a layer that only odd shards use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten())
        self.sometimes, self.never, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor, shard: int) -> Tensor:
        """Run the model on one shard."""
        x = self.body(x)
        return self.head(self.sometimes(x) if shard % 2 else x)


def train(rank: int, world: int, kind: str, settings: dict[str, Any], num_shards: int, first: int, state: Any) -> Any:
    """Train for steps [first, 20); the digest of weights and momentum, and the state after step 1."""
    torch.manual_seed(1)
    model = Branchy().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if state is not None:
        saved = torch.load(io.BytesIO(state))
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    engine_class = OwnBuckets if kind == "own" else OwnCollectives
    engine = engine_class(model.parameters(), rank, world, num_shards, Arena(), delay=0.02, **settings)
    for index, p in enumerate(model.parameters()):
        p.register_post_accumulate_grad_hook(lambda p, index=index: engine.on_grad(index, p))
    after_first = None
    for step in range(first, 20):
        data = torch.Generator().manual_seed(step)
        batch = 3 if step in (7, 13) else 3 * num_shards - step % 3  # ragged; in steps 7 and 13 most shards are empty
        x, y = torch.randn(batch, 3, 6, 6, generator=data), torch.randint(10, (batch,), generator=data)
        engine.begin_step(float(batch))
        for shard in block(rank, world, num_shards):
            mine = slice(shard * 3, min(shard * 3 + 3, batch))
            count = max(0, mine.stop - mine.start)
            engine.begin_shard(shard, float(count))
            if count:
                loss = nn.functional.cross_entropy(model(x[mine], shard), y[mine])
                loss.backward()
            engine.end_shard()
        engine.finish()
        assert model.never.weight.grad is None
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            saved_now = io.BytesIO()
            torch.save((model.state_dict(), optimizer.state_dict()), saved_now)
            after_first = saved_now.getvalue()
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().contiguous().numpy().tobytes())
        if "momentum_buffer" in optimizer.state.get(p, {}):
            digest.update(optimizer.state[p]["momentum_buffer"].contiguous().numpy().tobytes())
    return digest.hexdigest(), after_first


def train_hook(rank: int, world: int, kind: str) -> str:
    """Twenty steps of the 0.5M net with one shard a process: with DDP's hook, or with own buckets."""
    model, _, _ = make("0.5M")
    bench = Bench(rank, world, model, torch.empty(0), torch.empty(0), [kind])
    for step in range(20):
        data = torch.Generator().manual_seed(step * world + rank)
        bench.x, bench.y = torch.randn(4, 3, 16, 16, generator=data), torch.randint(10, (4,), generator=data)
        bench.steps[kind]()
    digest = hashlib.sha256()
    cells = [cell.cell_contents for cell in bench.steps[kind].__closure__ or ()]
    trained = next(cell for cell in cells if isinstance(cell, nn.Module))
    for p in trained.parameters():
        digest.update(p.detach().numpy().tobytes())
    return digest.hexdigest()


def check(shards: list[int]) -> None:
    """Compare digests over world sizes, variants, random delays and a resume."""
    variants = [
        ("own", {"lag": 1, "bucket_mib": 0.004, "piece_kib": 1}),
        ("own", {"lag": 0, "bucket_mib": 0.004}),
        ("own", {"lag": 3, "bucket_mib": 0.002, "piece_kib": 2, "api": "dist", "fill": "bucket"}),
        ("own", {"lag": -1, "bucket_mib": 4}),
        ("own", {"lag": -2, "bucket_mib": 0.004, "piece_kib": 1}),
        ("coll", {"lag": 1, "bucket_mib": 0.004}),
        ("coll", {"lag": -1, "bucket_mib": 0.004}),
    ]
    for num_shards in shards:
        worlds = [world for world in (1, 2, 3, 4) if world <= num_shards]
        seen: dict[str, list[str]] = {}
        for kind, settings in variants:
            for world in worlds:
                results = start(world, train, kind, settings, num_shards, 0, None)
                for digest, _ in results:
                    seen.setdefault(digest, []).append(f"{kind}{settings} W={world}")
                if settings.get("lag") == 1:
                    for digest, _ in start(world, train, kind, settings, num_shards, 2, results[0][1]):
                        seen.setdefault(digest, []).append(f"{kind}{settings} W={world} resumed")
        print(
            f"V={num_shards}: {len(seen)} digest(s) over {sum(map(len, seen.values()))} processes: {[d[:12] for d in seen]}"
        )
        if len(seen) > 1:
            print({digest[:12]: runs for digest, runs in seen.items()})
        sys.stdout.flush()
    for world in (2, 3, 4):
        digests = {d for kind in ("own:lag=1,bucket_mib=0.3,piece_kib=64", "hook") for d in start(world, train_hook, kind)}
        print(f"one shard a process, W={world}, own buckets and DDP's hook: {len(digests)} digest(s)")
    identity()


def identity() -> None:
    """Whether adding -0.0 changes any bits, in fp32, fp64, fp16 and bf16."""
    for dtype, bits in ((torch.float32, torch.int32), (torch.float64, torch.int64)):
        raw = torch.randint(torch.iinfo(bits).min, torch.iinfo(bits).max, (4_000_000,), dtype=bits)
        info = torch.finfo(dtype)
        special = [
            0.0,
            -0.0,
            float("inf"),
            -float("inf"),
            float("nan"),
            info.tiny,
            -info.tiny,
            info.max,
            info.smallest_normal,
        ]
        x = torch.cat([raw.view(dtype), torch.tensor(special, dtype=dtype)])
        for total in (x + -0.0, x + torch.full_like(x, -0.0), torch.full_like(x, -0.0) + x):
            changed = x.view(bits) != total.view(bits)
            print(
                f"x + -0.0, {dtype}: {int((changed & ~x.isnan()).sum())} of {x.numel()} changed, {int(changed.sum())} NaNs"
            )
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
        changed = x.view(torch.int16) != (x + -0.0).view(torch.int16)
        print(f"x + -0.0, {dtype}: {int((changed & ~x.isnan()).sum())} of all 65536 changed, {int(changed.sum())} NaNs")


# Calls


def calls(rank: int, world: int) -> list[str]:
    """Microseconds of Python a call, of small messages: issue, then wait for all."""
    pg: Any = dist.group.WORLD
    other = 1 - rank
    lines = []
    for label, numel in (("256 B", 64), ("256 KiB", 65536)):
        a, b, n = torch.zeros(numel), torch.zeros(numel), 200
        two, four = torch.zeros(2 * numel), torch.zeros(2 * numel)

        def own(n: int = n, a: Tensor = a, b: Tensor = b) -> list[Any]:
            works = [pg.recv([b], other, i) for i in range(n)]
            return works + [pg.send([a], other, i) for i in range(n)]

        def public(n: int = n, a: Tensor = a, b: Tensor = b) -> list[Any]:
            works = [dist.irecv(b, other, tag=i) for i in range(n)]
            return works + [dist.isend(a, other, tag=i) for i in range(n)]

        def batched(n: int = n, a: Tensor = a, b: Tensor = b) -> list[Any]:
            ops = [dist.P2POp(dist.irecv, b, other, tag=i) for i in range(n)]
            return dist.batch_isend_irecv(ops + [dist.P2POp(dist.isend, a, other, tag=i) for i in range(n)])

        def collective(n: int = n, a: Tensor = two, b: Tensor = four) -> list[Any]:
            return [dist.all_to_all_single(b, a, async_op=True) for _ in range(n)]

        def gather(n: int = n, a: Tensor = a, b: Tensor = two) -> list[Any]:
            return [dist.all_gather_single(b, a, async_op=True) for _ in range(n)]

        rows: list[tuple[str, Callable[[], list[Any]], int]] = [
            ("ProcessGroup.send/recv", own, 2 * n),
            ("dist.isend/irecv", public, 2 * n),
            ("dist.batch_isend_irecv", batched, 2 * n),
            ("all_to_all_single", collective, n),
            ("all_gather_single", gather, n),
        ]
        best: dict[str, list[tuple[float, float]]] = {row[0]: [] for row in rows}
        for _ in range(15):
            for what, issue, count in rows:
                dist.barrier()
                t0 = time.perf_counter()
                works = issue()
                t1 = time.perf_counter()
                for work in works:
                    work.wait()
                best[what].append(((t1 - t0) / count, (time.perf_counter() - t1) / count))
        for what, times in best.items():
            issued, waited = (statistics.median(part) * 1e6 for part in zip(*times, strict=True))
            lines.append(f"  {what:26} {label:8} issue {issued:7.1f} us, wait {waited:7.1f} us a call")
    return lines


# A slow link


@contextlib.contextmanager
def slow_link(rate: str) -> Iterator[list[str]]:
    """Two network namespaces joined by a slow veth pair (needs root)."""
    names = [f"exact{os.getpid()}a", f"exact{os.getpid()}b"]

    def run(*commands: str) -> None:
        for command in commands:
            subprocess.run(command.split(), check=True)

    try:
        run(*[f"ip netns add {name}" for name in names])
        run(f"ip link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}")
        for number, name in enumerate(names):
            inside = f"ip netns exec {name} "
            run(inside + f"ip addr add 10.77.0.{number + 1}/24 dev veth0", inside + "ip link set lo up")
            run(inside + "ip link set veth0 up")
            run(inside + f"tc qdisc add dev veth0 root tbf rate {rate} burst 256kb latency 400ms")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def main() -> None:
    """Run one of the sub-runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    speed = verbs.add_parser("speed", help="step time of contenders on loopback; the first one is 1")
    link = verbs.add_parser("link", help="the same over a slow link between two namespaces (root)")
    for verb in (speed, link):
        verb.add_argument("contenders", nargs="+")
        verb.add_argument("--world", type=int, default=2)
        verb.add_argument("--model", default="5M", choices=["0.5M", "5M", "25M", "25M-conv"])
        verb.add_argument("--rounds", type=int, default=10)
        verb.add_argument("--steps", type=int, default=3)
        verb.add_argument("--profile", default="", metavar="CONTENDER")
        verb.add_argument("--detail", action="store_true", help="milliseconds a step in each part, on rank 0")
    link.add_argument("--rate", default="100mbit")
    verb = verbs.add_parser("check", help="equal digests at every number of processes")
    verb.add_argument("--shards", type=int, nargs="*", default=[4, 8, 3])
    verbs.add_parser("calls", help="what a call costs in Python")
    args = parser.parse_args()
    if args.verb == "check":
        check(args.shards)
    elif args.verb == "calls":
        print("\n".join(start(2, calls)[0]))
    else:
        with slow_link(args.rate) if args.verb == "link" else contextlib.nullcontext(None) as spaces:
            results = start(
                args.world, race, args.model, args.contenders, args.rounds, args.steps, args.profile, spaces=spaces
            )
        show(args.model, args.world, results, args.contenders, detail=args.detail)


if __name__ == "__main__":
    main()
