"""What the reading says of a script as its run begins."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from lockstep.joining.instrument import Instrument, Run
from lockstep.tools.check.at_start import notices, read_main


class Reading(Instrument):
    """In every run of the user's own."""

    @override
    def notices(self, run: Run) -> Iterable[str]:
        """What is certain of the script that this process runs."""
        if run.asked:
            return ()
        return notices(read_main(), resumes=run.config.checkpoint_every != "off")
