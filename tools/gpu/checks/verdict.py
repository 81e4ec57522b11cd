"""The arguments and the verdict of a check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def make_parser(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="device, as in lockstep run")
    parser.add_argument("--found", type=Path, metavar="FILE", help="file for the findings, as JSON")
    parser.add_argument("--tiny", action="store_true", help="only check that it runs: sizes too small for findings")
    return parser


def add_num_devices(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the option of a check of several GPUs."""
    about = "number of GPUs of this machine, and the largest number of processes"
    parser.add_argument("--num-devices", type=int, required=True, metavar="N", help=about)
    return parser


def begin(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the arguments, and sets one CPU thread: a device needs no more, and all loops are
    then equal."""
    torch.set_num_threads(1)
    return parser.parse_args()


def device_of(name: str) -> torch.device:
    """Returns PyTorch's name of a device in lockstep's option."""
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def settle(device: torch.device) -> None:
    """Wait for what was launched."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def finish(args: argparse.Namespace, found: Mapping[str, Any], problems: Sequence[str]) -> None:
    """Write down what was found, say the problems, and exit: with 1 if there are any."""
    text = json.dumps(found, indent=1, default=str)
    if args.found is not None:
        args.found.write_text(text, encoding="utf-8")
    print(text)
    for problem in problems:
        print(f"PROBLEM: {problem}", flush=True)
    sys.exit(bool(problems))
