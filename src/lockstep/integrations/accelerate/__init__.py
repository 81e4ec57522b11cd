"""accelerate's ``Accelerator`` on lockstep's engine (experimental)."""

from lockstep.integrations.accelerate._accelerator import Accelerator

__all__ = ["Accelerator"]
