"""The central test: kill a run at random moments, go on at other world sizes, and look that nothing
was lost.

    make soak N=200 SOAK_ARGS="--seed 7"

Every round is a run of ``victim.py`` that is killed, or asked to stop (SIGTERM, SIGUSR1), once to
three times (one rank, all ranks at once, or the launcher) and resumed by another number of
processes, another number of loader workers, perhaps another launcher. In the end every sample of
every epoch must have been used exactly once, and the digest must be that of a run that nobody
disturbed. See ``soaking``; on several hosts, ``cluster/soak_hosts.py`` does it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import soaking
from soaking import SHARDS, STEPS, TIMEOUT_S

TARGETS = ("one rank", "all ranks", "the launcher", "one rank, with a restart")


class Round(soaking.Round):
    """One run, its kills and its resumptions on one machine."""

    def __init__(self, seed: int, directory: Path, kinds: tuple[str, ...] = soaking.KINDS, most_kills: int = 3) -> None:
        super().__init__(seed, directory, kinds)
        self._most_kills = most_kills

    def run(self) -> dict | None:
        """To its end; returns the last words."""
        for launch in range(self.random.randint(1, self._most_kills)):
            said = self._launch(launch, to_be_killed=True)
            if said is not None:
                return said  # it was over before it could be killed
        for launch in (7, 8, 9):  # as often as needed: what hangs is ended, which is one more kill
            said = self._launch(launch, to_be_killed=False)
            if said is not None:
                return said
        return None

    def _launch(self, launch: int, *, to_be_killed: bool) -> dict | None:
        nproc = self.random.randint(1, SHARDS)
        launchers = ["lockstep"] * 8 + ["torchrun"] + ["python"] * 2 * (nproc == 1)
        launcher, workers = self.random.choice(launchers), self.random.choice([0, 0, 1, 2])
        target = self.random.choice(TARGETS) if launcher == "lockstep" else "all ranks"
        restarts = ["--max-restarts", "1"] if to_be_killed and "restart" in target else []
        step_s = self.random.choice([0.0, 0.01]) if to_be_killed else 0.0
        settings = soaking.options(self.directory, 25)
        asked = soaking.script(self.kind, step_s)
        env = {**os.environ, **self.notes.environment(launch, workers)}
        if launcher == "lockstep":
            asked = [*soaking.run_options(nproc, settings, *restarts), *asked]
        else:
            env["LOCKSTEP_SETTINGS"] = json.dumps(settings)
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
            asked = [sys.executable, *(torchrun if launcher == "torchrun" else []), *asked]
        self.story.append(
            f"{launcher} on {nproc} processes, {workers} workers" + (f", kill {target}" if to_be_killed else "")
        )
        out = self.directory / f"output-{launch}"
        with out.open("w") as file:
            if launcher == "lockstep":
                process = self.start(asked, env=env, cwd=self.directory, output=file)
            else:
                process = subprocess.Popen(asked, env=env, cwd=self.directory, stdout=file, stderr=subprocess.STDOUT)
            try:
                if to_be_killed:
                    self._kill(process, launch, nproc, target)
                status = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                # Seen once in some 100 launches on a busy machine: a loader worker that hangs right
                # after its fork.
                self.seen["launches that hung"] += 1
                status = "no end: it hung"
                process.kill()
                self._sweep()
            finally:
                process.kill()
                process.wait()
        said = soaking.words(out.read_text())
        self.story.append(f"  ended with {status}{'' if said is None else ', at its end'}")
        if restarts and said is not None and self.notes.starts(launch) > 1:
            self.seen["restarts by the launcher"] += 1
        if said is None and not to_be_killed:
            self.story.append(out.read_text())
        return said

    def _sweep(self) -> None:
        """End what is left of a launch that hung: processes that have this round's directory in
        their environment."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if str(self.directory).encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                    os.kill(int(entry.name), signal.SIGKILL)

    def _kill(self, process: subprocess.Popen, launch: int, nproc: int, target: str) -> None:
        """Wait for a random step of this launch, and a little longer; then strike."""
        batches = self.random.randint(0, STEPS // 2)
        delay_s = self.random.random() * 0.03
        victim = self.random.randrange(nproc)
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.notes.processes(launch)) < nproc or self.notes.batches(launch) < batches:
            if process.poll() is not None or time.monotonic() > deadline:
                return
            time.sleep(0.005)
        time.sleep(delay_s)
        ranks = {rank: pid for rank, (pid, _) in self.notes.processes(launch).items()}
        doomed = (
            [process.pid] if target == "the launcher" else list(ranks.values()) if target == "all ranks" else [ranks[victim]]
        )
        number = self.random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
        self.story.append(f"  {number.name} after {self.notes.batches(launch)} batches and {1000 * delay_s:.0f} ms")
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.seen["kills" if number == signal.SIGKILL else "stops asked for"] += 1


if __name__ == "__main__":
    sys.exit(soaking.soak(soaking.read_arguments(__doc__, rounds=20, every=5), Round))
