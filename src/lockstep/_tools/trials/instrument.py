"""Applies the changes of a trial to its script's run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lockstep._base.trackers import without_services
from lockstep._joining.instrument import Instrument, Run
from lockstep._tools.trials.settings import TrialSettings

if TYPE_CHECKING:
    from lockstep._base.config import RunConfig
    from lockstep._listener import Listener


class TrialInstrument(Instrument):
    """An instrument that applies ``TrialSettings``, which the command passes by field."""

    @override
    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the script's settings with the trial's changes."""
        return settings if self.asked is None else TrialSettings(**self.asked).applied_to(settings)

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """Turns off trackers that write to services."""
        return config if self.asked is None else dataclasses.replace(config, track=without_services(config.track))

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """Returns a listener that makes the run wait, if it will be killed."""
        if self.asked is None or not TrialSettings(**self.asked).is_held:
            return ()
        from lockstep._tools.trials.wait_for_kill import WaitForKill  # with torch

        return (WaitForKill(run),)
