"""A process that has imported accelerate, transformers and lockstep, and forks the ranks of
trainings, as torchrun starts them. Importing all that takes each rank seconds.

``python nest.py`` answers each line of its input (a JSON object) with a line: the ranks' exit
statuses. ``Nest`` asks it."""

import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

IMPORTED = (
    "accelerate",
    "accelerate.local_sgd",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
)
IMPORTED += (
    "datasets",
    "sklearn.metrics",
    "sklearn.model_selection",
    "torch._dynamo",
    "lockstep._joining.preload",
    "lockstep._sync.exact",
)
IMPORTED += ("lockstep.integrations.accelerate", "PIL.Image", "transformers.optimization")


class Nest:
    """Asks the process. ``close`` ends it."""

    def __init__(self):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-W", "ignore", __file__]
        self._process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def run(self, num_ranks, module, function, args, cwd, env=None):
        """``module.function(*args)`` on so many ranks, in this directory. Each rank's output is in
        the file ``log-RANK``.

        Returns:
            Each rank's exit status, and what it returned (None: nothing).
        """
        for rank in range(num_ranks):
            Path(cwd, f"result-{rank}").unlink(missing_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        asked = {"num_ranks": num_ranks, "call": [module, function, args], "cwd": str(cwd), "env": env or {}, "port": port}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        statuses = json.loads(self._process.stdout.readline())
        results = [Path(cwd, f"result-{rank}") for rank in range(num_ranks)]
        return statuses, [json.loads(file.read_text()) if file.exists() else None for file in results]

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def serve():
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # what is imported need not be looked through, nor copied, in each rank
    for line in sys.stdin:
        asked = json.loads(line)
        pids = [fork(rank, **asked) for rank in range(asked["num_ranks"])]
        statuses = {}
        while len(statuses) < len(pids):
            pid, status = os.wait()
            statuses[pid] = os.waitstatus_to_exitcode(status)
            if statuses[pid]:  # as a launcher does
                for other in set(pids) - statuses.keys():
                    os.kill(other, 15 if statuses[pid] > 0 else 9)
        print(json.dumps([statuses[pid] for pid in pids]), flush=True)


def fork(rank, num_ranks, call, cwd, env, port):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.chdir(cwd)
        log = os.open(f"log-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), LOCAL_WORLD_SIZE=str(num_ranks))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **env)
        module, function, args = call
        result = getattr(importlib.import_module(module), function)(*args)
        Path(f"result-{rank}").write_text(json.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve()
