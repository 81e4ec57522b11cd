"""accelerate's ``Accelerator`` on lockstep's engine (experimental): see ``Accelerator``."""

from lockstep.integrations.accelerate.accelerator import Accelerator

__all__ = ["Accelerator"]
