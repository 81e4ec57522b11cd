"""The state of an abstract execution: where it is, what was written where, and which use of it is a
finding."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from lockstep._tools.check import source
from lockstep._tools.check.reading import Reading
from lockstep._tools.check.report import Report, Use, code_of
from lockstep._tools.check.state import CONTENT, Key, State
from lockstep._tools.check.values import (
    CLOCK,
    NOTHING,
    OF_A_SHARD,
    OWNED,
    RANKED,
    SIZE,
    Cell,
    Frame,
    Object,
    Site,
    Value,
    Write,
    mix,
)

MOST_WORK = 400_000
"""The number of expressions after which the check stops, with what it has found. No real script
needs nearly as many."""

_UNWRITTEN = {"team", "loader", "batch", "evaluation", "function", "class", "file", "external", "clock", "method", "shards"}
"""The kinds of objects that a variable may be bound to again without that being state of the
script."""
_UNCHANGED = {"per shard", "team", "batch", "evaluation", "optimizer", "external", "file", "function", "class", "method"}
"""The kinds of objects whose partial changes are no state of the script, or are kept elsewhere."""
_HELD = {"instance", "module", "tensor", "opaque", "list", "dict", "set", "deque", "draws"}
"""The kinds of objects that are in a checkpoint if a registered object contains them."""
_PLAIN = {"tensor", "list", "dict", "set", "deque", "draws"}
"""The kinds of objects that are in a checkpoint if a prepared optimizer contains them."""


class TooMuch(Exception):  # noqa: N818
    """The script is too large to be read to its end."""


class Machine(Reading):
    """One execution. Subclasses know expressions, calls and statements."""

    def __init__(self) -> None:
        self.state = State()
        self.frame = Frame(None, "")
        self.loops: tuple[int, ...] = ()
        self.inside = 0
        """The loop over shards whose body runs; 0: none."""
        self.in_step = False
        self.in_data_set = False
        self.data_set: Object | None = None
        """The dataset whose ``__getitem__`` runs."""
        self.shard_names: list[str] = []
        """The names that the running loop over shards binds."""
        self.control: frozenset[Site] = frozenset()
        """The sites on which it depends whether this statement runs."""
        self.control_flags = 0
        self.report = Report()
        self.made: dict[int, Object] = {}
        self.calls: list[tuple[ast.Call, Frame, frozenset[Object]]] = []
        """The calls of the script's functions that are running: where, and of which object's
        methods."""
        self.num_calls_around = 0
        """The number of these calls around the innermost loop over shards, steps or epochs."""
        self.begun: list[Object] = []
        """The objects whose ``__init__`` is running: what it sets is no change of them."""
        self.work = 0
        self.has_joined = False
        self.is_seeded = False

    # -- objects
    # ----------------------------------------------------------------------------------------------

    def make(self, node: ast.AST, kind: str, name: str = "", *, fresh: bool = True) -> Object:
        """The object that this place of the script makes."""
        made = self.made.get(id(node))
        if made is None or made.kind != kind:
            made = self.made[id(node)] = Object(kind, name, node)
        elif fresh:
            self.state.forget(made)
        return made

    def keep(self, held: Iterable[Object]) -> None:
        """Mark these objects, and their content, as being in checkpoints. ``hold`` marks what they
        are assigned later."""
        waiting = [target for target in held if not target.is_kept]
        while waiting:
            target = waiting.pop()
            target.is_kept = True
            target.in_state = self.in_state(target)
            cells = [
                cell
                for (owner, name), cell in self.state.cells.items()
                if owner is target and target.holds_state(name.strip("*"))
            ]
            inner = {o for cell in cells for part in (cell.value, *(cell.value.items or ())) for o in part.objects}
            waiting += [o for o in inner if o.kind in _HELD and not o.is_kept]

    def hold(self, place: Object, value: Value, name: str = "") -> None:
        """Note that an object contains another one from now on."""
        if place.holds_state(name):
            kinds = _PLAIN if place.is_optimizer() else _HELD
            self.keep(o for part in (value, *(value.items or ())) for o in part.objects if o.kind in kinds)

    # -- reading
    # ----------------------------------------------------------------------------------------------

    def _is_seen(self, write: Write) -> bool:
        if write.site.inside:
            return not self.inside or (write.stale and not write.slight)
        return write.stale

    def look(self, cell: Cell) -> Value:
        """The value at a location, which depends on the sites that wrote it earlier, or
        elsewhere."""
        if not cell.writes:
            return cell.value
        seen = frozenset(write.site for write in cell.writes if self._is_seen(write))
        return cell.value._replace(sites=cell.value.sites | seen) if seen else cell.value

    def content(self, target: Object) -> Value:
        """What an object is made of: the items of a list, the numbers of a tensor."""
        cell = self.state.get((target, CONTENT))
        return NOTHING if cell is None else self.look(cell)

    def use(self, value: Value, depth: int = 3) -> Value:
        """What is computed from a value."""
        if value.items is not None and depth:
            value = mix([value, *(self.use(item, depth - 1) for item in value.items)])._replace(objects=value.objects)
        if not value.objects:
            return value.plain()
        flags, sites = value.flags, value.sites
        for target in value.objects:
            inner = self.content(target)
            if target.has_statistics and not self.inside:
                statistics = self.state.get((target, "statistics"))
                sites |= self.look(statistics).sites if statistics is not None else frozenset()
            if (inner.objects or inner.items is not None) and depth and target not in inner.objects:
                inner = self.use(inner, depth - 1)
            flags |= inner.flags
            sites |= inner.sites
        return Value.made(flags & ~OWNED, sites)

    def used(self, values: Iterable[Value]) -> Value:
        """What is computed from all of these."""
        return mix([self.use(value) for value in values])

    # -- writing
    # ----------------------------------------------------------------------------------------------

    def site(self, node: ast.AST, name: str, how: str) -> Site:
        """The site of a node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        frame: Frame | None = self.frame
        while frame is not None and frame.definition is None:
            frame = frame.parent
        scope = 0 if frame is None else id(frame.definition)
        return Site(self.frame.path, line, column, name, how, bool(self.inside), scope)

    def place(self, node: ast.AST, name: str, how: str) -> frozenset[Site]:
        """The site of a node whose value is separate in each process."""
        return frozenset((self.site(node, name, how)._replace(inside=True),))

    def write(self, node: ast.AST, name: str, how: str, value: Value, *, own: bool = False) -> Write | None:
        """The record of a change, if it is one that matters.

        Args:
            node: where.
            name: of what is changed.
            how: it is changed: see ``Site``.
            value: what is written.
            own: whether the old value goes into the new one.
        """
        if value.flags & CLOCK:
            return None
        if self.inside:
            # A write inside matters only if it may be another one in each shard: because it
            # depends on an earlier shard, on this shard's samples or random numbers, or on its own
            # old value (a counter has as many additions as this process has shards).
            depends = any(site.inside for site in value.sites | self.control)
            flags = (value.flags | self.control_flags) & OF_A_SHARD
            if not (own or depends or flags):
                return None  # every shard would write the same
            if own and value.flags & RANKED and not depends:
                return None  # this process's place among all, moved on
            slight = not own and not depends and flags == SIZE
            how = "data set" if self.in_data_set else how
            return Write(self.from_loop(self.site(node, name, how)), self.loops, slight=slight)
        # Outside, what is written before the loops is written again by a resumed run, and what only
        # names a batch or a function is no state.
        if not self.loops or (value.objects and all(o.kind in _UNWRITTEN or o.is_kept_iterator() for o in value.objects)):
            return None
        return Write(self.from_loop(self.site(node, name, how)), self.loops)

    def governed(self, value: Value) -> Value:
        """A value as it is where it is written: that it is written at all depends on something,
        too."""
        return value._replace(sites=value.sites | self.control) if self.control else value

    def change(self, target: Object, node: ast.AST, name: str, how: str, value: Value, *, own: bool = True) -> None:
        """An object changes in part."""
        if target.kind in _UNCHANGED or target.is_optimizer():
            return
        self.hold(target, value)
        if target.is_prepared and target.kind not in ("list", "dict", "draws"):
            # weights that are written inside are refused when it runs; outside they are in
            # checkpoints
            return
        if target.is_kept and not self.inside:
            self.state.add((target, CONTENT), self.governed(value), None)
            return
        if target.is_copy or target.kind == "module":
            how = "average"
        elif target.is_buffer:
            how = "buffer"
        elif how == "add":
            how = "change"
        if target.kind != "opaque" or "." not in name:  # sampler.weights, rather than sampler
            name = self.name_of(target) or name
        if own and how == "average":
            self.sink(self.content(target), node, "answer")  # moved on from where it was
        value = self.governed(value)
        self.state.add((target, CONTENT), value, self.write(node, name, how, value, own=own))

    def replace(self, target: Object, node: ast.AST, name: str, value: Value) -> None:
        """Note that the whole content of an object changes."""
        if target.is_prepared or (target.is_kept and not self.inside):
            return
        how = "average" if target.is_copy or target.kind == "module" else "buffer" if target.is_buffer else "change"
        value = self.governed(value)
        self.state.put((target, CONTENT), value, self.write(node, self.name_of(target) or name, how, value))

    def renew(self, target: Object, node: ast.AST, name: str, value: Value) -> None:
        """Note that an item changes which every shard writes again, such as what a hook notes under
        a layer's name."""
        cell = self.state.get((target, CONTENT))
        place = self.from_loop(self.site(node, name, "change"))[:3]
        if cell is not None:
            others = frozenset(write for write in cell.writes if write.site[:3] != place)
            self.state.cells[target, CONTENT] = Cell(cell.value, others)
        self.change(target, node, name, "change", value, own=False)

    def change_sample(self, value: Value, node: ast.AST) -> bool:
        """Note that a sample, or a part of one, is changed in place. Returns whether the dataset
        keeps it."""
        if not (value.flags & OWNED and self.inside):
            return False
        how, whole = ("", self._whole_sample(node)) if self.in_data_set else ("batch", self._whole_batch(node))
        self.report.add("LS113", self.site(node, ast.unparse(node)[:40], how), whole=whole)
        return True

    def _whole_batch(self, node: ast.AST) -> str:
        """What to copy at the start of the loop over shards."""
        root = source.root(node)
        return root if root in self.shard_names else ", ".join(self.shard_names)

    def _whole_sample(self, node: ast.AST) -> str:
        """The names to copy in a function of a dataset: not what a loop in it binds, since the copy
        would be lost after that loop."""
        root, definition = source.root(node), self.frame.definition
        loops = [part for part in source.walk(definition) if isinstance(part, ast.For)] if definition is not None else []
        outer = [source.root(loop.iter) for loop in loops if root in source.bound_names(loop.target)]
        return "sample" if root == "self" else next(filter(None, outer), root)

    def owned(self, value: Value, depth: int = 3) -> bool:
        """Whether a value contains something that the dataset keeps."""
        if value.flags & OWNED or not depth:
            return bool(value.flags & OWNED)
        cells = [self.state.get((o, CONTENT)) for o in value.objects if o.kind in _HELD]
        inner = [*(value.items or ()), *(cell.value for cell in cells if cell is not None)]
        return any(self.owned(part, depth - 1) for part in inner)

    def change_items(self, target: Object, value: Value, write: Write | None) -> None:
        """Note that any item of a dict may change, including items under constant keys."""
        for owner, name in list(self.state.cells):
            if owner is target and name != CONTENT:
                self.state.add((target, name), value, write)

    def name_of(self, target: Object, frame: Frame | None = None) -> str:
        """The first variable, of this frame or one around it, whose value is an object, or contains
        it."""
        frame = frame or self.frame
        while frame is not None:
            for (owner, name), cell in self.state.cells.items():
                if owner is not frame:
                    continue
                held = cell.value.objects
                if target in held:
                    return name
                for outer in held:
                    inner = self.state.cells.get((outer, CONTENT))
                    if inner is not None and target in inner.value.objects:
                        return name
                    if outer.kind == "instance":
                        for (place, attribute), of_it in self.state.cells.items():
                            if place is outer and target in of_it.value.objects:
                                return f"{name}.{attribute}"
            frame = frame.parent
        return ""

    # -- findings
    # ----------------------------------------------------------------------------------------------

    def sink(self, value: Value, node: ast.AST, kind: str) -> None:
        """Note a use of a value that matters: results, or what the user sees, depend on it.

        Args:
            value: the value.
            node: the place of the use.
            kind: ``answer``, ``weights`` (by way of the loss, or of an optimizer), ``control``,
                ``decision`` (of all ranks), ``save``, ``print`` or ``return``.
        """
        # What decides whether a line is printed changes no result; what decides whether anything
        # else happens does.
        sites = value.sites if kind == "print" else value.sites | self.control
        for site in sites:
            code = code_of(site, kind, is_control=site in self.control)
            if code is not None:
                self.report.add(code, site, Use(self.frame.path, node, bool(self.inside)))

    def find(self, code: str, node: ast.AST, name: str) -> None:
        """Note a finding that no use has to follow."""
        self.report.add(code, self.site(node, name, ""))

    # -- where it is
    # ----------------------------------------------------------------------------------------------

    @contextmanager
    def under(self, test: Value) -> Iterator[None]:
        """Run statements whose execution depends on a test."""
        before = self.control, self.control_flags
        self.control |= frozenset(site for site in test.sites if site.how != "world")
        self.control_flags |= test.flags
        try:
            yield
        finally:
            self.control, self.control_flags = before

    def over_shards(self, node: ast.AST, body: Callable[[], None]) -> None:
        """Run the body of a loop over shards twice: the second time reads what the first has
        written, as one shard reads what an earlier one has."""
        number, before, loops = id(node), self.inside, self.loops
        self.loops = (*loops, number)
        around, self.num_calls_around = self.num_calls_around, len(self.calls)
        try:
            for _ in range(2):
                self.state.age(number)
                self.inside = number
                body()
        finally:
            self.inside, self.loops, self.num_calls_around = before, loops, around
            self.state.age(number)

    def key_of(self, name: str) -> Key:
        """The location of a variable that is bound here."""
        frame = self.frame
        if name in frame.global_names:
            return frame.module(), name
        if name in frame.outer_names:
            outer = frame.parent
            while outer is not None:
                if (outer, name) in self.state.cells:
                    return outer, name
                outer = outer.parent
        return frame, name
