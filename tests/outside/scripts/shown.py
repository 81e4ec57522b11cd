"""Tells what it finds around itself, as JSON in the file that its first argument names, and its rank after it."""

import json
import logging
import os
import signal
import sys
import threading
import warnings
from multiprocessing import current_process, get_start_method

import torch

found = {
    "name": __name__,
    "doc": __doc__,
    "package": __package__,
    "spec": repr(__spec__),
    "file": __file__,
    "cwd": os.getcwd(),
    "argv": sys.argv,
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "process": current_process().name,
    "daemon": current_process().daemon,
    "start_method": get_start_method(allow_none=True),
    "threads": threading.active_count(),
    "log_handlers": len(logging.getLogger().handlers),
    "signals": [
        repr(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1)
    ],
    "filters": len(warnings.filters),
    "streams": [sys.stdout.encoding, sys.stderr.encoding, sys.stdin.encoding],
    "seed": torch.initial_seed(),
    "default_dtype": str(torch.get_default_dtype()),
    "is_main_thread": threading.current_thread() is threading.main_thread(),
}
with open(sys.argv[1] + os.environ.get("RANK", ""), "w") as file:
    json.dump({"found": found, "environ": dict(os.environ)}, file)
