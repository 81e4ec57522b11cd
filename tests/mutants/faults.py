"""Faults of one or two lines, as in the tables of this directory: one file per room."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = Path("src", "lockstep")


class RowError(Exception):
    """A row must be fixed."""


@dataclass(frozen=True)
class Fault:
    """A text of a file that is replaced, and the tests of which one must then fail."""

    name: str
    file: str
    old: str
    new: str
    room: str
    tests: tuple[str, ...] = ()
    survives: str = ""  # why no test can see it: such a row is listed, not run

    def planted_in(self, text: str) -> str:
        """Returns the file's text with the fault, or raises RowError."""
        found = text.count(self.old)
        if found != 1:
            raise RowError(f"its old text is {found} times in {self.file}")
        if self.new == self.old:
            raise RowError("its new text is the old one")
        planted = text.replace(self.old, self.new)
        try:
            compile(planted, self.file, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise RowError(f"with it, {self.file} is no Python: {error}") from None
        return planted


def read_faults(tables: Iterable[Path], only: str = "") -> list[Fault]:
    """Returns the rows of these tables, those with ``only`` in their name."""
    known = {field.name for field in fields(Fault)} - {"room"}
    faults = []
    for table in tables:
        for number, row in enumerate(tomllib.loads(table.read_text()).get("fault", []), 1):
            place = f"{table.name}, row {number}"
            if unknown := sorted(row.keys() - known):
                raise RowError(f"{place}: nothing is called {', '.join(unknown)}")
            if missing := sorted({"name", "file", "old", "new"} - row.keys()):
                raise RowError(f"{place}: it has no {', '.join(missing)}")
            row["tests"] = tuple(row.get("tests", ()))
            faults.append(Fault(room=table.stem, **row))
    return [fault for fault in faults if only.lower() in fault.name.lower()]
