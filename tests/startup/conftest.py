from warm import run_here

__all__ = ["run_here"]
