"""How long a page of `lockstep report` takes to open in a browser, without a window (headless Chromium).

    python benchmarks/report_opening.py

The page is that of a run of 100,000 steps with eight curves, whose journal is written here after a short run's own. Measured is
what the browser itself says: from the start of the navigation to the end of its load event, the first opening apart.

  ratio   seconds / 1: lower is better
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import _harness as harness

GOAL = 1.0
SKIPPED = 77
_TIMING = "performance.timing.loadEventEnd && performance.timing.loadEventEnd - performance.timing.navigationStart"
_LONGEST_S = 30.0


class Browser:
    """Chromium, spoken to in its DevTools protocol through two pipes: messages of JSON that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        (hears, self._out), (self._in, says) = os.pipe(), os.pipe()
        command = f"exec chromium --headless --no-sandbox --disable-gpu --remote-debugging-pipe --user-data-dir={profile}"
        self._process = subprocess.Popen(
            ["sh", "-c", f"{command} about:blank 3<&{hears} 4>&{says}"],
            pass_fds=(hears, says),
            stderr=subprocess.DEVNULL,
        )
        os.close(hears)
        os.close(says)
        self._number, self._heard, self._session = 0, b"", {}
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]}

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._heard:
                self._heard += os.read(self._in, 1 << 16) or sys.exit("chromium has ended")
            text, _, self._heard = self._heard.partition(b"\0")
            answer = json.loads(text)
            if answer.get("id") == self._number:
                return dict(answer["result"])

    def open_page(self, url: str) -> float:
        """Seconds until its load event was over."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            asked = f"location.href === {json.dumps(url)} && {_TIMING}"
            took_ms = self.call("Runtime.evaluate", expression=asked, returnByValue=True)["result"].get("value")
            if took_ms:
                return float(took_ms) / 1e3
            time.sleep(0.01)
        sys.exit(f"the page did not open within {_LONGEST_S:.0f} s")

    def close(self) -> None:
        """End it, and wait."""
        self.call("Browser.close")
        self._process.wait()
        os.close(self._out)
        os.close(self._in)


def make_page(directory: Path, num_steps: int) -> Path:
    """The report on a run of so many steps."""
    command = (sys.executable, "-m", "lockstep")
    for arguments in (("new", "."), ("run", "--nproc", "2", "--run-dir", "run", "train.py", "--epochs", "1")):
        subprocess.run([*command, *arguments], cwd=directory, check=True, capture_output=True)
    journal = directory / "run" / "events.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    own = {event["event"]: event for event in events}
    with journal.open("w") as file:
        for event in events[: next(place for place, event in enumerate(events) if event["event"] == "step")]:
            print(json.dumps(event), file=file)
        for step in range(1, num_steps + 1):
            values = {f"loss {k}": math.exp(-step / num_steps) + 0.1 * random.random() for k in range(8)}
            where = {"time_s": own["step"]["time_s"] + 0.1 * step, "epoch": 100 * step // num_steps, "step": step}
            print(json.dumps({**own["step"], **where, "values": values}), file=file)
            if step % (num_steps // 100) == 0:
                print(json.dumps({**own["evaluate"], **where}), file=file)
    subprocess.run([*command, "report", "run"], cwd=directory, check=True, capture_output=True)
    return directory / "run" / "report.html"


def main() -> None:
    args = harness.make_parser(__doc__ or "", rounds=20).parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args)
    if shutil.which("chromium") is None:
        say("there is no chromium here")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as name:
        page = make_page(Path(name), 1_000 if args.quick else 100_000)
        size_bytes = page.stat().st_size
        browser = Browser(Path(name, "profile"))
        try:
            browser.open_page(page.as_uri())
            times = [browser.open_page(page.as_uri()) for _ in range(rounds)]
        finally:
            browser.close()
    ratio = harness.median_bounds(times)
    timings = {f"a page of {size_bytes / 1e3:.0f} kB": times}
    say(harness.spread_table(timings, "s", {}, digits=3))
    harness.finish(
        {
            "benchmark": "report_opening",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(ratio),
            "goal_met": ratio.upper95 <= GOAL,
            "medians_s": harness.medians(timings),
            "size_bytes": size_bytes,
            "coverage": round(ratio.coverage, 4),
            **harness.circumstances(args, rounds, harness.machine()),
        }
    )


if __name__ == "__main__":
    main()
