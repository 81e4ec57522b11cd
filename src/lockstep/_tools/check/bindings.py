"""What is bound and changed: variables, attributes and items."""

from __future__ import annotations

import ast

from typing_extensions import override

from lockstep._tools.check import samples, source
from lockstep._tools.check.methods import Methods
from lockstep._tools.check.state import CONTENT, Key
from lockstep._tools.check.values import DATA, NOTHING, OF_A_SHARD, OWNED, Object, Value, Write, merge, mix

_OF_OPTIMIZERS = ("lr", "momentum", "weight_decay", "betas", "initial_lr")

_OF_PARAMETERS = ("requires_grad", "training")
"""Attributes of parameters and modules that are no numbers to compute with."""
_GATHERING: dict[type[ast.AST], str] = {ast.BitOr: "or", ast.Or: "or", ast.BitAnd: "and", ast.And: "and"}
_EXTREMES = {"max": "max", "maximum": "max", "min": "min", "minimum": "min"}
"""Operators and functions that make of all shards' values one that does not depend on which process
has which."""


class Bindings(Methods):
    """Assigns to targets."""

    def __init__(self) -> None:
        super().__init__()
        self.born: set[Key] = set()
        """Variables that were bound in a loop first."""

    @override
    def bind(self, target: ast.AST, value: Value, source_: ast.AST | None = None) -> None:
        if isinstance(target, ast.Name):
            own = source_ is not None and target.id in source.loaded_names(source_)
            value = self.governed(value)
            how = "average" if any(o.is_copy for o in value.objects) else gathers(source_, own=own)
            write = self.write(target, target.id, how, self.use_flags(value), own=own)
            is_flag = isinstance(source_, ast.Constant) and isinstance(source_.value, bool) and not self.inside
            # What ends a loop has its first value where the loop goes on.
            self.put_variable(target.id, value, None if is_flag else write)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value, source_)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, source_)
        elif isinstance(target, ast.Attribute):
            own = source_ is not None and source.dotted(target) in source.loaded_names(source_)
            if not self._set_in_sample(target, source_):
                self.set_attribute(target, value, own=own)
        elif isinstance(target, ast.Subscript):
            own = source_ is not None and source.shown(target) in source.loaded_names(source_)
            if not self._set_in_sample(target, source_):
                self.set_item(target, value, own=own)

    def _set_in_sample(self, target: ast.Attribute | ast.Subscript, source_: ast.AST | None) -> bool:
        """A part of something is set. Returns whether that is a finding: it is of a sample that the
        dataset keeps, and its new value is made of the old one."""
        base = self.eval(target.value) if self.inside else NOTHING
        if not base.flags & OWNED or source_ is None:
            return False
        if samples.moves_on(target, source_):
            return self._move_sample(target, base)
        # its old value is replaced
        self.state.put((self.frame, ast.unparse(target)), NOTHING, None)
        return False

    def _move_sample(self, target: ast.AST, base: Value) -> bool:
        """A new value of a part of a sample, or of one, is made of the old one. Returns whether the
        dataset keeps it."""
        is_new = (self.frame, ast.unparse(target)) in self.state.cells
        return not is_new and self.change_sample(base, target)

    def put_variable(self, name: str, value: Value, write: Write | None) -> None:
        """Bind a variable. One that is bound in a loop first is no state that a resume could lose
        unnoticed: where it is read before it is written, Python raises an error."""
        key = self.key_of(name)
        if not self.inside and self.loops:
            if key not in self.state.cells:
                self.born.add(key)
            if key in self.born:
                write = None
        elif not self.inside:
            self.born.discard(key)
        self.state.put(key, value, write)

    def use_flags(self, value: Value) -> Value:
        """A value with the flags of what is in it."""
        return value if value.items is None else value._replace(flags=self.use(value).flags)

    def _unpack(self, targets: list[ast.expr], value: Value, source_: ast.AST | None) -> None:
        star = next((at for at, target in enumerate(targets) if isinstance(target, ast.Starred)), None)
        items = value.items
        parts: list[ast.AST | None] = [source_] * len(targets)
        if isinstance(source_, (ast.Tuple, ast.List)) and len(source_.elts) == len(targets):
            parts = list(source_.elts)
        if items is not None and star is None and len(items) == len(targets):
            for target, item, part in zip(targets, items, parts, strict=True):
                self.bind(target, item._replace(sites=item.sites | value.sites), part)
            return
        if items is not None and star is not None and len(items) >= len(targets) - 1:
            behind = len(targets) - star - 1
            middle = items[star : len(items) - behind]
            chosen = [*items[:star], merge(middle) if middle else NOTHING, *items[len(items) - behind :]]
            for target, item, part in zip(targets, chosen, parts, strict=True):
                self.bind(target, item, part)
            return
        element = merge(items) if items is not None else value
        for target, part in zip(targets, parts, strict=True):
            self.bind(target, element._replace(items=None), part)

    @override
    def set_attribute(self, target: ast.Attribute, value: Value, *, own: bool, grows: bool = False) -> None:
        base = self.eval(target.value)
        name, shown = target.attr, source.shown(target)
        value = self.governed(value)
        single = len(base.objects) == 1
        for place in base.objects:
            if place.kind in ("per shard", "external", "batch", "team"):
                continue
            if name in ("data", "grad"):
                if not self.inside:
                    self.sink(self.use(value), target, "weights")
                continue
            if place.kind == "kept state" and not self.inside:
                sites = frozenset(site for site in value.sites if site.inside)
                self.sink(Value.made(0, sites), target, "save")
                continue
            if name in place.buffers and (place.is_prepared or not self.inside):
                continue
            how = "buffer" if name in place.buffers else "attribute"
            self.hold(place, value, name)
            if place.kind in ("instance", "class", "file", "kept state") or self.inside:
                place.children |= value.objects
                kept = place.holds_state(name) and not self.inside
                write = (
                    None
                    if kept or place.kind == "optimizer" or place in self.begun
                    else self.write(target, shown, how, self.use_flags(value), own=own)
                )
                (self.state.put if single and not grows else self.state.add)((place, name), value, write)
            else:
                place.children |= value.objects
                of_library = place.kind in ("module", "opaque") and name not in _OF_PARAMETERS
                write = self.write(target, shown, "given", value, own=own) if of_library and not value.objects else None
                self.state.put((place, name), value, write)
                self.sink(self.use(value), target, "answer")
            place.given.add(name)

    def set_item(self, target: ast.Subscript, value: Value, *, own: bool) -> None:
        """``base[index] = value``."""
        base, key = self.eval(target.value), self.eval(target.slice)
        index, is_each = self.use(key), any(o.kind == "module" or o.is_prepared for o in key.objects)
        shown = source.shown(target)
        used = self.use(value)
        stored = self.governed(value._replace(flags=used.flags | (index.flags & DATA), sites=value.sites | index.sites))
        if not base.objects:
            if not self.inside and isinstance(target.slice, ast.Constant) and target.slice.value in _OF_OPTIMIZERS:
                self.sink(used, target, "weights")
            self.change_root(target, stored, own=own)
            return
        for place in base.objects:
            if (
                place.kind == "optimizer"
                or place.is_optimizer()
                or (place.is_prepared and place.kind not in ("list", "dict"))
            ):
                if not self.inside:
                    self.sink(used, target, "weights")
                continue
            if place.kind == "dict":
                write = self.write(target, shown, "change", stored, own=own)
                write = None if place.is_kept and not self.inside else write
                if isinstance(target.slice, ast.Constant):
                    self.state.put((place, f"[{target.slice.value!r}]"), stored, write)
                else:
                    self.change_items(place, stored, write)
            anew = (
                not index.flags & OF_A_SHARD and not index.sites if self.inside else is_each and self._is_anew(place, stored)
            )
            if anew and not own:
                self.renew(place, target, shown, stored)
            else:
                self.change(place, target, shown, "change", stored, own=own)

    def _is_anew(self, place: Object, value: Value) -> bool:
        """Whether a value that is kept for each parameter of a model is not made of the one that
        was kept before."""
        cell = self.state.get((place, CONTENT))
        return cell is None or value.sites.isdisjoint(write.site for write in cell.writes)

    @override
    def change_root(self, node: ast.AST, value: Value, *, own: bool) -> None:
        at = node
        while isinstance(at, (ast.Subscript, ast.Call)):
            at = at.value if isinstance(at, ast.Subscript) else at.func
            if isinstance(at, ast.Attribute) and isinstance(node, ast.Call):
                at = at.value
        shown = source.shown(at)
        if isinstance(at, ast.Attribute):
            for place in self.eval(at.value).objects:
                if place.kind in ("instance", "class", "file") and at.attr not in place.buffers:
                    is_kept = (place.is_prepared or place.holds_state(at.attr)) and not self.inside
                    write = None if is_kept else self.write(node, shown, "change", value, own=own)
                    self.state.add((place, at.attr), value, write)
            return
        if not isinstance(at, ast.Name) or at.id == "self":
            return
        key = self.key_of(at.id)
        known = self.state.cells.get(key)
        if known is None:
            return
        self.state.add(key, value, self.write(node, shown, "change", value, own=own))

    def _augmented(self, node: ast.AugAssign) -> None:
        added = self.use(self.eval(node.value))
        target = node.target
        if isinstance(target, ast.Name):
            old = self.eval(ast.copy_location(ast.Name(target.id, ast.Load()), target))
            is_tensor = target.id in self.shard_names or any(o.kind == "tensor" for o in old.objects)
            if is_tensor and self.change_sample(old, target):
                return
            places = [o for o in old.objects if o.kind in ("list", "dict", "set", "deque", "tensor", "module", "opaque")]
            if places:
                for place in places:
                    how = "append" if place.kind in ("list", "deque") else "add"
                    self.change(place, node, target.id, how, added)
                return
            value = self.governed(mix((old, added)))
            how = _GATHERING.get(type(node.op), "add")
            self.put_variable(target.id, value, self.write(node, target.id, how, value, own=True))
        elif isinstance(target, ast.Attribute):
            load = ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
            old = self.eval(load)
            if self._move_sample(target, old):
                return
            places = [o for o in old.objects if o.kind in ("list", "dict", "set", "deque", "tensor")]
            if places:
                for place in places:
                    self.change(place, node, source.shown(target), "append" if place.kind == "list" else "add", added)
                return
            self.set_attribute(target, mix((old, added)), own=True)
        elif isinstance(target, ast.Subscript):
            old = self.eval(ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target))
            if self.is_of_data_set(target.value) or not self._move_sample(target, old):
                self.set_item(target, added, own=True)


def gathers(source_: ast.AST | None, *, own: bool) -> str:
    """How a variable's new value comes from its old one, by which shards are gathered: see
    ``Site.how``. A flag that is raised is the ``or`` of what raises it."""
    if isinstance(source_, ast.Constant) and isinstance(source_.value, int):
        return "or" if source_.value else "and"
    if not own:
        return "set"
    if isinstance(source_, ast.BinOp):
        return _GATHERING.get(type(source_.op), "add")
    if isinstance(source_, ast.BoolOp):
        return _GATHERING[type(source_.op)]
    if isinstance(source_, ast.Call):
        return _EXTREMES.get(source.dotted(source_.func).rpartition(".")[2], "set")
    return "set"


def is_whole(index: ast.AST) -> bool:
    """Whether it is ``[:]``."""
    return isinstance(index, ast.Slice) and index.lower is None and index.upper is None
