"""Scripts on the warm fork server."""

from warm import run_here

__all__ = ["run_here"]
