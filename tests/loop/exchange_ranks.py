"""The exchanges of several ranks in one process, a thread for each: what they exchange is put
together here."""

import threading
from concurrent.futures import ThreadPoolExecutor

from lockstep._loop.exchange import Peers, exchange
from lockstep._loop.numbers import PhaseNumbers
from lockstep._plan.blocks import blocks_of
from lockstep._plan.shards import plan_step
from lockstep._sync.news import NOTHING


class Exchanges:
    """What ranks gather from each other, and a note of each time that they do."""

    def __init__(self, size):
        self.size = size
        self.rows = []
        """The rows of each exchange of rows, by rank."""
        self.num_pages = 0
        """How often the ranks have exchanged pages."""
        self._values = [None] * size
        self._barrier = threading.Barrier(size, timeout=20)

    def gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class Rank:
    """One rank: its peers, what these use of a group of ranks, a clock that never ticks, and what
    an exchange uses of a strategy."""

    def __init__(self, exchanges, rank, sizes, accumulate=1):
        self.size = exchanges.size
        self.blocks = blocks_of(sizes)
        self.step = 0
        self._exchanges, self._rank = exchanges, rank
        self.peers = Peers(self, accumulate, self)
        self._news = NOTHING

    # Collectives

    def all_gather_plain(self, value):
        if self._rank == 0:
            self._exchanges.num_pages += 1
        return self._exchanges.gather(self._rank, value)

    # Clock

    def device_finished(self):
        pass

    def report(self, plan):
        return [float(len(plan.micro_batches))]

    def receive(self, rows):
        pass

    # A strategy

    def news(self):
        return self._news

    def gather(self, row):
        rows = self._exchanges.gather(self._rank, row)
        if self._rank == 0:
            self._exchanges.rows.append(rows)
        return rows

    # A phase

    def phase(self, shard, num_samples=8, phase=0, news=NOTHING, step=None):
        """A phase of the next step, in which ``shard(numbers, micro)`` is run for each shard of
        this rank. Returns what the ranks have agreed on."""
        self.step = step or self.step + 1
        plan = plan_step(self.step, (num_samples,), self._rank, self.blocks)
        numbers, self._news = PhaseNumbers(), news
        for micro in plan.micro_batches:
            shard(numbers, micro)
            numbers.end_shard(micro)
        return exchange(numbers, self, plan, (self.step, phase), self.peers)


def on_ranks(sizes, work):
    """What ``work(rank)`` returned on each rank, or the error that it raised, and the exchanges.
    ``sizes``: how many shards each rank has."""
    exchanges = Exchanges(len(sizes))

    def run(number):
        try:
            return work(Rank(exchanges, number, sizes))
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(sizes)) as threads:
        return list(threads.map(run, range(len(sizes)))), exchanges
