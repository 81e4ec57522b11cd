"""Scripts of ranks that exchange what the doctor exchanges."""

from lockstep._tools.doctor.exchange import GradientExchange, join


def exchange_twice():
    """The sums of two tensors over the ranks, which each has filled with its number, from 1; the
    kind of device that they were on; and the number of ranks on each machine."""
    with join(20.0) as member:
        exchange, sums = GradientExchange(member), []
        for num_bytes in (4, 1 << 20):
            tensor = exchange.make(num_bytes).fill_(member.world.rank + 1)
            exchange(tensor)
            sums.append(set(tensor.tolist()))
        return sums, exchange.device.type, member.transport.ranks_per_machine
