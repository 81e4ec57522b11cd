"""The instrument that records the digests of every run, and that turns a run into a replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import override

from lockstep._base.config import RunConfig, without_tools
from lockstep._joining.instrument import Instrument, Run
from lockstep._listener import Listener
from lockstep._tools.replay.opening import open_digests, open_replay
from lockstep._tools.replay.options import JournalOptions
from lockstep._tools.replay.request import Request


class Replay(Instrument):
    """Asked for a ``Request``, by field; nothing is asked of a run that only records its
    digests."""

    options: JournalOptions

    def __init__(self, asked: Any = None) -> None:
        super().__init__(asked)
        self._request = None if asked is None else Request(**asked)

    @override
    def given(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """No other tool does anything in a replay."""
        return settings if self._request is None else without_tools(settings)

    @override
    def settings(self, config: RunConfig) -> RunConfig:
        """A replay has a separate directory, no checkpoints, and nothing that stops it."""
        return config if self._request is None else self._request.settings(config)

    @override
    def listeners(self, run: Run) -> Iterable[Listener]:
        """The digest journal, and what shows the steps of a replay."""
        request = self._request
        if request is None:
            return open_digests(run, self.options.journal_every, range(0))
        return [*open_digests(run, request.every, request.steps), *open_replay(run, request)]
