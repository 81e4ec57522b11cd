"""The imports of this process as something that stays."""

import gc


def keep_imports() -> None:
    """What there is now need not be looked through whenever a run is closed or a loop left: all of
    transformers is a quarter of a second each time."""
    gc.collect()
    gc.freeze()
