"""What statements do."""

from __future__ import annotations

import ast
from collections.abc import Callable

from typing_extensions import override

from lockstep.tools.check import names, source
from lockstep.tools.check.expressions import void
from lockstep.tools.check.methods import Methods
from lockstep.tools.check.state import CONTENT, Key, join
from lockstep.tools.check.values import (
    DATA,
    NOTHING,
    OF_A_SHARD,
    RANDOM,
    RANKED,
    SIZE,
    Frame,
    Site,
    Value,
    Write,
    merge,
    mix,
)

_OF_OPTIMIZERS = ("lr", "momentum", "weight_decay", "betas", "initial_lr")


class Statements(Methods):
    """Runs statements."""

    def __init__(self) -> None:
        super().__init__()
        self.born: set[Key] = set()
        self.decided_by: frozenset[Site] = frozenset()
        """On what the innermost ``if`` depends."""
        self.statements: dict[type[ast.AST], Callable[..., bool | None]] = {
            ast.Expr: self._expression,
            ast.Assign: self._assign,
            ast.AugAssign: self._augmented,
            ast.AnnAssign: self._annotated,
            ast.For: self.run_for,
            ast.AsyncFor: self.run_for,
            ast.While: self.run_while,
            ast.If: self._if,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Return: self._return,
            ast.Break: self._jump,
            ast.Continue: self._jump,
            ast.Raise: self._raise,
            ast.Import: self._import,
            ast.ImportFrom: self._import,
            ast.Delete: self._delete,
            ast.Assert: lambda node: void(self.eval(node.test)),
            ast.Match: self._match,
        }
        """Each returns False if the next statement is not reached."""

    @override
    def block(self, body: list[ast.stmt]) -> bool:
        return all(self.statement(node) for node in body)

    def statement(self, node: ast.stmt) -> bool:
        """Run a statement. Returns whether the next one is reached."""
        handler = self.statements.get(type(node))
        return handler is None or handler(node) is not False

    def _assign(self, node: ast.Assign) -> None:
        value = self.eval(node.value)
        for target in node.targets:
            self.bind(target, value, node.value)

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value), node.value)

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.state.cells.pop(self.key_of(target.id), None)
            elif isinstance(target, ast.Subscript) and _is_whole(target.slice):
                for place in self.eval(target.value).objects:
                    self.state.put((place, CONTENT), NOTHING, None)

    def _expression(self, node: ast.Expr) -> None:
        self.unknown = None
        value = self.eval(node.value)
        call = node.value
        if not isinstance(call, ast.Call) or id(self.unknown) != id(call):
            return
        name = source.dotted(call.func)
        if self.inside and names.is_harmless(name):
            return
        self.sink(self.use(value), node, names.kind_of(name))

    # -- binding ------------------------------------------------------------------------------------------------------------

    @override
    def bind(self, target: ast.AST, value: Value, source_: ast.AST | None = None) -> None:
        if isinstance(target, ast.Name):
            own = source_ is not None and target.id in source.loaded_names(source_)
            value = self.governed(value)
            if self.inside and own and value.objects and not value.flags and not value.sites:
                own = False  # x = x.to(device), model = wrap(model)
            how, doubtful = "set", False
            if any(o.is_copy for o in value.objects):
                how = "average"
            elif own and isinstance(source_, ast.BinOp):
                how = "add"
            elif isinstance(source_, ast.Constant) and isinstance(source_.value, bool) and not self.inside:
                how, doubtful = "flag", True
            write = self.write(target, target.id, how, self.use_flags(value), own=own, doubtful=doubtful)
            self.put_variable(target.id, value, write)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value, source_)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, source_)
        elif isinstance(target, ast.Attribute):
            own = source_ is not None and source.dotted(target) in source.loaded_names(source_)
            self.set_attribute(target, value, own=own)
        elif isinstance(target, ast.Subscript):
            own = source_ is not None and source.shown(target) in source.loaded_names(source_)
            if self.ordered and isinstance(source_, ast.Call) and source.dotted(source_.func) == "len":
                value = value._replace(sites=value.sites | self.ordered)
            self.set_item(target, value, own=own)

    def put_variable(self, name: str, value: Value, write: Write | None) -> None:
        """Bind a variable. One that is bound in a loop first is no state that a resume could lose without a word: where it is
        read before it is written, Python says so."""
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
        if not base.objects:
            key = (self.frame, source.dotted(target))
            if name == "grad":
                self.sink(self.use(value), target, "answer")
                return
            self.state.put(key, value, self.write(target, shown, "attribute", value, own=own))
            return
        single = len(base.objects) == 1
        for place in base.objects:
            if place.kind in ("per shard", "external", "batch", "team"):
                continue
            if name in ("data", "grad"):
                if name == "data" and self.inside and self.is_weights(place):
                    self.find("LS108", target, source.shown(target.value))
                elif not self.inside:
                    self.sink(self.use(value), target, "weights")
                continue
            if place.kind == "kept state" and not self.inside:
                sites = frozenset(site for site in value.sites if site.inside)
                self.sink(Value(frozenset(), 0, sites), target, "save")
                continue
            if name in place.buffers and (place.is_prepared or not self.inside):
                continue
            how = "statistics" if name in place.buffers else "attribute"
            if place.kind in ("instance", "class", "file", "kept state") or self.inside:
                place.children |= value.objects
                kept = place.is_kept and not place.is_prepared and not self.inside
                write = (
                    None
                    if kept or place.kind == "optimizer" or place in self.begun
                    else self.write(target, shown, how, self.use_flags(value), own=own)
                )
                (self.state.put if single and not grows else self.state.add)((place, name), value, write)
            else:
                place.children |= value.objects
                self.state.put((place, name), value, None)
                self.sink(self.use(value), target, "answer")

    def set_item(self, target: ast.Subscript, value: Value, *, own: bool) -> None:
        """``base[index] = value``."""
        base, index = self.eval(target.value), self.use(self.eval(target.slice))
        shown = source.shown(target)
        used = self.use(value)
        stored = self.governed(value._replace(flags=used.flags | (index.flags & DATA), sites=value.sites | index.sites))
        if not base.objects:
            if not self.inside and isinstance(target.slice, ast.Constant) and target.slice.value in _OF_OPTIMIZERS:
                self.sink(used, target, "weights")
            self.change_root(target, stored, own=own)
            return
        for place in base.objects:
            if place.kind == "optimizer" or (place.is_prepared and place.kind not in ("list", "dict")):
                if source.goes_through_data(target.value) and self.inside and self.is_weights(place):
                    self.find("LS108", target, shown)
                elif not self.inside:
                    self.sink(used, target, "weights")
                continue
            drawn = (used.flags | index.flags) & (DATA | RANDOM)
            if self.in_data_set and not drawn and not own and not any(s.inside for s in stored.sites):
                continue  # a cache by index, of what every process would compute
            if place.kind == "dict":
                write = self.write(target, shown, "change", stored, own=own)
                write = None if place.is_kept and not self.inside else write
                if isinstance(target.slice, ast.Constant):
                    self.state.put((place, f"[{target.slice.value!r}]"), stored, write)
                else:
                    self.change_items(place, stored, write)
            if _is_whole(target.slice):
                self.replace(place, target, shown, stored)
            elif self.inside and not own and not index.flags & OF_A_SHARD and not index.sites:
                self.renew(place, target, shown, stored)
            else:
                self.change(place, target, shown, "change", stored, own=own)

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
                    self.state.add((place, at.attr), value, self.write(node, shown, "change", value, own=own))
            return
        if not isinstance(at, ast.Name) or at.id == "self":
            return
        key = self.key_of(at.id)
        frame = self.frame.parent
        while key not in self.state.cells and frame is not None:
            key, frame = (frame, at.id), frame.parent
        known = self.state.cells.get(key)
        if known is None:
            return
        if known.value.objects:
            for place in known.value.objects:
                self.change(place, node, shown, "append" if not own else "change", value, own=own)
            return
        if any(not write.stale and write.site.inside for write in known.writes):
            own = False  # made in this very shard
        self.state.add(key, value, self.write(node, shown, "change", value, own=own))

    def _augmented(self, node: ast.AugAssign) -> None:
        added = self.use(self.eval(node.value))
        target = node.target
        if isinstance(target, ast.Name):
            old = self.eval(ast.copy_location(ast.Name(target.id, ast.Load()), target))
            places = [o for o in old.objects if o.kind in ("list", "dict", "set", "deque", "tensor", "module", "opaque")]
            if places:
                for place in places:
                    how = "append" if place.kind in ("list", "deque") else "add"
                    self.change(place, node, target.id, how, added)
                return
            if self.inside and old.flags & RANKED and not added.flags & ~SIZE & DATA:
                added = added._replace(flags=added.flags | RANKED)
            value = self.governed(mix((old, added)))
            self.put_variable(target.id, value, self.write(node, target.id, "add", value, own=True))
        elif isinstance(target, ast.Attribute):
            load = ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
            if target.attr == "grad":
                if not self.inside:
                    self.sink(added, node, "answer")
                return
            if target.attr == "data":
                self.set_attribute(target, added, own=True)
                return
            old = self.eval(load)
            places = [o for o in old.objects if o.kind in ("list", "dict", "set", "deque", "tensor")]
            if places:
                for place in places:
                    self.change(place, node, source.shown(target), "append" if place.kind == "list" else "add", added)
                return
            self.set_attribute(target, mix((old, added)), own=True)
        elif isinstance(target, ast.Subscript):
            self.eval(ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target))
            self.set_item(target, added, own=True)

    # -- ways ---------------------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> bool:
        if isinstance(node.test, ast.Compare) and source.dotted(node.test.left) == "__name__":
            return self.block(node.body)
        if source.dotted(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            return True
        test = self.use(self.eval(node.test))
        sites, decided_by = test.sites, self.decided_by
        before = self.state
        ends = []
        for body in (node.body, node.orelse):
            self.state = before.copy()
            with self.under(sites):
                self.decided_by = sites
                if self.block(body):
                    ends.append(self.state)
        self.decided_by = decided_by
        joined = join(ends)
        if joined is None:
            return False
        self.state = joined
        return True

    def _jump(self, node: ast.Break | ast.Continue) -> bool:
        if self.jumps:
            jumps = self.jumps[-1]
            (jumps.broken if isinstance(node, ast.Break) else jumps.continued).append(self.state)
        control = self.control
        if not self.decided_by:  # such as a dry run's: what numbers steps is for output here
            self.control = frozenset(site for site in control if site.how != "number")
        if self.control:
            self.sink(NOTHING, node, "control")
        self.control = control
        return False

    def _raise(self, node: ast.Raise) -> bool:
        if self.control:
            self.sink(NOTHING, node, "control")
        return False

    def _return(self, node: ast.Return) -> bool:
        value = NOTHING if node.value is None else self.eval(node.value)
        if node.value is None and self.control:
            self.sink(NOTHING, node, "control")
        if len(self.returned) <= 1 and node.value is not None:
            self.sink(self.use(value), node, "return")
        if self.returned:
            self.returned[-1].append((self.governed(value), self.state))
        return False

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        entered = []
        for item in node.items:
            value = self.eval(item.context_expr)
            own = [o for o in value.objects if o.kind == "instance" and self.method(o, "__enter__")]
            if own:
                entered += own
                value = merge([self.call_method(o, "__enter__", []) for o in own])
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, item.context_expr)
        alive = self.block(node.body)
        for target in reversed(entered):
            self.call_method(target, "__exit__", [NOTHING] * 3)
        return alive

    def _try(self, node: ast.Try) -> bool:
        before = self.state.copy()
        alive = self.block(node.body) and (not node.orelse or self.block(node.orelse))
        ends = [self.state] if alive else []
        start = join([before, self.state]) or before
        for handler in node.handlers:
            self.state = start.copy()
            if self.block(handler.body):
                ends.append(self.state)
        joined = join(ends)
        if joined is None:
            self.state = start
            self.block(node.finalbody)
            return False
        self.state = joined
        return self.block(node.finalbody)

    def _match(self, node: ast.Match) -> bool:
        test = self.use(self.eval(node.subject))
        before, ends = self.state, [self.state.copy()]
        for case in node.cases:
            self.state = before.copy()
            with self.under(test.sites):
                if self.block(case.body):
                    ends.append(self.state)
        self.state = join(ends) or before
        return True

    # -- definitions --------------------------------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        made = self.make(node, "function", node.name)
        made.definition, made.frame = node, self._defining_frame()
        for decorator in node.decorator_list:
            self.eval(decorator)
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            self.defaults[id(default)] = self.eval(default)
        self.state.put(self.key_of(node.name), Value(frozenset((made,))), None)

    def _defining_frame(self) -> Frame:
        """The frame that a function defined here sees: a class's own names are not among them."""
        frame = self.frame
        while isinstance(frame.definition, ast.ClassDef) and frame.parent is not None:
            frame = frame.parent
        return frame

    def _class(self, node: ast.ClassDef) -> None:
        made = self.make(node, "class", node.name)
        made.definition = node
        made.bases = [o for base in node.bases for o in self.eval(base).objects if o.kind in ("class", "external")]
        made.frame = self.frame
        outer = self.frame
        self.frame = Frame(outer, outer.path, node)
        inner = self.frame
        try:
            self.block(node.body)
        finally:
            self.frame = outer
        for (owner, name), cell in list(self.state.cells.items()):
            if owner is inner:
                self.state.put((made, name), cell.value, None)
        self.state.put(self.key_of(node.name), Value(frozenset((made,))), None)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                value = self.file(alias.name) if alias.asname or "." not in alias.name else None
                value = value or self.external(alias.name if alias.asname else name)
                self.state.put(self.key_of(name), value, None)
            return
        module = "." * node.level + (node.module or "")
        known = self.file(module)
        for alias in node.names:
            if alias.name == "*":
                if known is not None:
                    frame = next(iter(known.objects)).frame
                    for (owner, name), cell in list(self.state.cells.items()):
                        if owner is frame:
                            self.state.put(self.key_of(name), cell.value, None)
                continue
            inner = f"{module}.{alias.name}" if node.module else module + alias.name
            value = None
            if known is not None:
                frame = next(iter(known.objects)).frame
                held = self.state.get((frame, alias.name)) if frame is not None else None
                value = None if held is None else self.look(held)
            value = value or self.file(inner) or (NOTHING if known is not None else self.external(inner))
            self.state.put(self.key_of(alias.asname or alias.name), value, None)


def _is_whole(index: ast.AST) -> bool:
    return isinstance(index, ast.Slice) and index.lower is None and index.upper is None
