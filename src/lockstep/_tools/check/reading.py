"""The methods that the parts of the interpreter call on each other. Each part inherits from the one
before, and all call methods of later ones."""

from __future__ import annotations

import abc
import ast
from collections.abc import Iterable

from lockstep._tools.check.values import NOTHING, Object, Site, Value


class Reading(abc.ABC):
    """The whole, as each of its parts sees it."""

    @abc.abstractmethod
    def block(self, body: list[ast.stmt]) -> bool:
        """Run statements one after another. Returns whether the end was reached."""

    @abc.abstractmethod
    def bind(self, target: ast.AST, value: Value, source_: ast.AST | None = None) -> None:
        """Assign a value to a target; ``source_``: the expression it comes from."""

    @abc.abstractmethod
    def set_attribute(self, target: ast.Attribute, value: Value, *, own: bool, grows: bool = False) -> None:
        """``base.name = value``."""

    @abc.abstractmethod
    def change_root(self, node: ast.AST, value: Value, *, own: bool) -> None:
        """A part of something changes of which nothing is known but where it is kept."""

    @abc.abstractmethod
    def from_loop(self, site: Site) -> Site:
        """A change in a method of an object of the script's: as the loop shows it, by its variable
        and the call."""

    @abc.abstractmethod
    def in_state(self, target: Object) -> frozenset[str] | None:
        """The attributes that the ``state_dict()`` of an object of the script's contains; None:
        all, or unknown."""

    @abc.abstractmethod
    def iterate(self, node: ast.AST, target: ast.AST | None = None) -> tuple[Value, str]:
        """What a loop over an expression binds in each iteration, and what it runs over."""

    @abc.abstractmethod
    def yielded(self, value: Value) -> Value:
        """The generator that runs yields."""

    @abc.abstractmethod
    def served(self, loader: Object) -> Value:
        """The value on which a loader's next item depends: the present state of its dataset and
        sampler."""

    @abc.abstractmethod
    def call(self, node: ast.Call) -> Value:
        """A call's value. Its effects happen."""

    @abc.abstractmethod
    def invoke(self, function: Object, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Call a function of the script."""

    @abc.abstractmethod
    def run(self, function: Object, args: list[Value], keywords: dict[str, Value]) -> Value:
        """Run a function's body."""

    @abc.abstractmethod
    def written(self, value: Value) -> Value:
        """The value as text: for an object of the script, what its ``__str__`` returns."""

    @abc.abstractmethod
    def of_method(
        self, node: ast.Call, receiver: Value, function: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        """A method that is known by its name; None: it is not."""

    @abc.abstractmethod
    def of_library(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        """A call of something that is imported from a library."""

    @abc.abstractmethod
    def of_process(self, about: Iterable[str], node: ast.AST, otherwise: Value = NOTHING) -> Value:
        """A value that depends on the number of processes, or on which this is."""

    @abc.abstractmethod
    def builtin(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        """A call of a builtin of Python."""

    @abc.abstractmethod
    def drawn(self, target: Object, node: ast.AST, shown: str) -> Value:
        """The number drawn from a generator, which moves on."""

    @abc.abstractmethod
    def next(self, target: Object, node: ast.AST, shown: str) -> Value:
        """The next item of an iterator."""

    @abc.abstractmethod
    def file(self, name: str) -> Value | None:
        """A module of the user's own, run when it is imported first."""
