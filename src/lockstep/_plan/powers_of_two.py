"""Steps at growing intervals, for a check that costs too much for every step.

The code calls such a check a *look*: it inspects what a script did (to samples, weights, buffers)
and may warn of it."""

from __future__ import annotations


class PowersOfTwo:
    """A choice of steps: the first of a launch, the second, the fourth, the eighth and so on.

    What a script does wrong it nearly always does from the first step on, and the looks cost
    nothing on average.

    Args:
        between: whether to take the steps halfway between these: the first, the third, the sixth,
            the twelfth and so on. Most looks cost a small part of a step, but two that follow the
            whole model in one step would be felt.
    """

    def __init__(self, *, between: bool = False) -> None:
        self._second = 3 if between else 2
        self._first: int | None = None
        self.next = 0
        """The first step for which ``take`` may be true. (Callers compare each step with it, and
        call ``take`` only from then on: a call in every step would cost more.)"""

    def take(self, step: int) -> bool:
        """Whether to look in this step, which is not before any step passed earlier."""
        if self._first is None:
            self._first = step
        number, following = step - self._first + 1, self._second
        # n steps cost log2(n) looks: some 20 in a million steps.
        while following <= number:
            following *= 2
        is_taken = number == 1 or following == 2 * number
        self.next = step if is_taken else self._first - 1 + following
        return is_taken
