"""``python -m lockstep`` is the command ``lockstep``."""

from lockstep._cli.main import main

if __name__ == "__main__":
    main()
