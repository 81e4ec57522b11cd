"""The simulated accelerator as ``torch.sim``: builds ``device.cpp`` once for a version of torch,
and registers it.

PyTorch loads it when torch is imported, as it loads other makers' devices, where this directory is
on PYTHONPATH: see the entry point beside this file.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils import cpp_extension

SOURCE = Path(__file__).parents[1] / "device.cpp"
NAME = "sim_device"
TOTAL_BYTES = 1 << 30


def built():
    """The path of the library, which is built if this source has not been built for this torch.
    Takes a minute or two."""
    key = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep-simulated"
    library = cache / f"{torch.__version__}-{sys.implementation.cache_tag}-{key}" / f"{NAME}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    with (library.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            part = library.with_suffix(".part")
            subprocess.run([*command(), "-o", str(part)], check=True)
            part.rename(library)
    return library


def command():
    """How to compile it. Without optimization: that takes three times as long, and kernels are the
    CPU's in any case."""
    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    libraries = [path for path in cpp_extension.library_paths() if Path(path).is_dir()]
    return [
        os.environ.get("CXX", "g++"),
        *["-std=c++20", "-O0", "-fPIC", "-shared", "-w", f"-DTORCH_EXTENSION_NAME={NAME}"],
        *[f"-isystem{folder}" for folder in folders],
        str(SOURCE),
        *[option for path in libraries for option in (f"-L{path}", f"-Wl,-rpath,{path}")],
        *["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"],
    ]


def load():
    spec = importlib.util.spec_from_file_location(NAME, built())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stream(torch.Stream):
    def __new__(cls, device=None, priority=0):
        return super().__new__(cls, device=torch.device("sim", _index(device)), priority=priority)


class Event(torch.Event):
    def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
        return super().__new__(cls, "sim", enable_timing=enable_timing)


def _index(device):
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


class SimulatedDevice:
    """What ``torch.get_device_module("sim")`` returns: what other devices' modules have, as far as
    somebody asks for it."""

    Stream, Event, device = Stream, Event, torch.accelerator.device_index
    is_available = staticmethod(lambda: True)
    _is_in_bad_fork = is_current_stream_capturing = staticmethod(lambda: False)

    def __init__(self, library):
        self.library = library
        self.is_open = False
        self.default_generators = [library.default_generator(index) for index in range(library.device_count())]

    def _lazy_init(self):
        """Called by torch before it uses a device, as it calls that of CUDA."""
        self.is_open = True

    def is_initialized(self):
        """Whether this process has opened a context."""
        return self.is_open

    def device_count(self):
        return self.library.device_count()

    def current_device(self):
        return torch.accelerator.current_device_index()

    def set_device(self, device):
        torch.accelerator.set_device_index(_index(device))

    def current_stream(self, device=None):
        return torch.accelerator.current_stream(_index(device))

    def stream(self, stream):
        return contextlib.nullcontext() if stream is None else stream

    def synchronize(self, device=None):
        torch.accelerator.synchronize(_index(device))

    def manual_seed(self, seed):
        self.default_generators[self.current_device()].manual_seed(seed)

    def manual_seed_all(self, seed):
        for generator in self.default_generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device=None):
        return self.default_generators[_index(device)].get_state()

    def set_rng_state(self, state, device=None):
        self.default_generators[_index(device)].set_state(state)

    def get_amp_supported_dtype(self):
        return [torch.float16, torch.bfloat16]

    def get_device_name(self, device=None):
        return "simulated"

    def mem_get_info(self, device=None):
        """Free and total bytes: a card of 1 GB."""
        return TOTAL_BYTES - self.library.memory()[0], TOTAL_BYTES

    def memory_reserved(self, device=None):
        return self.library.memory()[0]

    def max_memory_reserved(self, device=None):
        return self.library.memory()[1]


def group(store, rank, size, timeout):
    """The process group ``simccl``."""
    return device.library.group(dist.ProcessGroupGloo(dist.PrefixStore("simccl", store), rank, size, timeout), rank, size)


def register():
    """Called by torch."""
    global device
    if "sim_device" in sys.modules:
        return
    torch.utils.rename_privateuse1_backend("sim")
    device = SimulatedDevice(load())
    sys.modules["sim_device"] = device.library
    torch._register_device_module("sim", device)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend("simccl", group, devices=["sim"])
