"""What an expression may be, without its calls."""

from __future__ import annotations

import ast
from collections.abc import Callable

from lockstep._tools.check import names, source
from lockstep._tools.check.machine import MOST_WORK, Machine, TooMuch
from lockstep._tools.check.state import CONTENT
from lockstep._tools.check.values import (
    DATA,
    NOTHING,
    NUMBER,
    OWNED,
    RANKED,
    SIZE,
    WORLD,
    Frame,
    Object,
    Value,
    Write,
    compute,
    merge,
    mix,
    text,
)

_OF_FORM = ("dtype", "device", "ndim", "requires_grad", "is_cuda")
"""Attributes that are the same for every shard."""

_PROPERTIES = {"property", "cached_property", "functools.cached_property"}


class Expressions(Machine):
    """Evaluates everything but calls."""

    def __init__(self) -> None:
        super().__init__()
        self.externals: dict[str, Object] = {}
        self.team = Object("team", "team")
        self.shards = Object("shards", "shards")
        self.batch = Object("batch", "batch")
        self.handlers: dict[type[ast.AST], Callable[..., Value]] = {
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Call: self.call,
            ast.BinOp: self._operation,
            ast.UnaryOp: lambda node: self.use(self.eval(node.operand)),
            ast.BoolOp: lambda node: merge([self.eval(part) for part in node.values]),
            ast.Compare: self._compare,
            ast.IfExp: self._if_expression,
            ast.Tuple: self._tuple,
            ast.List: self._collection,
            ast.Set: self._collection,
            ast.Dict: self._dict,
            ast.ListComp: self._comprehension,
            ast.SetComp: self._comprehension,
            ast.GeneratorExp: self._comprehension,
            ast.DictComp: self._comprehension,
            ast.Lambda: self._lambda,
            ast.Constant: _constant,
            ast.JoinedStr: self._joined,
            ast.FormattedValue: self._formatted,
            ast.NamedExpr: self._named,
            ast.Starred: lambda node: self.eval(node.value),
            ast.Await: lambda node: self.eval(node.value),
            ast.Yield: lambda node: self.yielded(NOTHING if node.value is None else self.eval(node.value)),
            ast.YieldFrom: self._yield_from,
            ast.Slice: lambda node: mix(
                [self.use(self.eval(p)) for p in (node.lower, node.upper, node.step) if p is not None]
            ),
        }

    def eval(self, node: ast.AST) -> Value:
        """What an expression may be. Its effects happen."""
        self.work += 1
        if self.work > MOST_WORK:
            raise TooMuch
        handler = self.handlers.get(type(node))
        return NOTHING if handler is None else handler(node)

    # -- names
    # ----------------------------------------------------------------------------------------------

    def external(self, name: str) -> Value:
        """Something of a library."""
        known = self.externals.get(name)
        if known is None:
            known = self.externals[name] = Object("external", name)
        return Value.of(known)

    def _name(self, node: ast.Name) -> Value:
        frame: Frame | None = self.frame
        while frame is not None:
            cell = self.state.get((frame, node.id))
            if cell is not None:
                value = self.look(cell)
                return value if value.objects or node.id != "team" else value._replace(objects=frozenset((self.team,)))
            frame = frame.parent
        if node.id == "team":
            return Value.of(self.team)
        found = [f"{library}.{node.id}" for library in self.frame.module().stars if names.is_exported(library, node.id)]
        return self.external(found[-1]) if found else NOTHING

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.eval(node.value), node)

    def attribute(self, base: Value, node: ast.Attribute) -> Value:
        """``base.name``."""
        name = node.attr
        if not base.objects:
            if name == "shards":
                return Value.of(self.shards)
            if name == "team":
                return Value.of(self.team)
            if name in _OF_FORM:
                return NOTHING
            return Value.made(SIZE if name == "shape" and base.flags & DATA else base.flags, base.sites)
        found = [self._attribute_of(target, name, node) for target in base.objects]
        value = merge(found)
        return value._replace(flags=value.flags | base.flags, sites=value.sites | base.sites)

    def _attribute_of(self, target: Object, name: str, node: ast.Attribute) -> Value:
        if target.kind == "external":
            return self.external(f"{target.name}.{name}")
        if target.kind == "team":
            flags = WORLD if name == "world_size" else RANKED if name in ("rank", "is_main", "local_rank") else 0
            sites = self.place(node, source.dotted(node), "world") if flags == WORLD else frozenset()
            return Value.made(flags, sites)
        if target.kind in ("batch", "shards", "evaluation"):
            return Value.of(self.shards) if name == "shards" else NOTHING
        if target.kind == "kept state":
            return NOTHING if not self.inside else self.field(target, name) or NOTHING
        if target.kind == "per shard":
            return Value(frozenset((target,)), DATA)
        if target.kind == "loader" or name == "averages":
            return self.field(target, name) or NOTHING
        if target.kind == "file":
            cell = self.state.get((target.frame, name)) if target.frame is not None else None
            return NOTHING if cell is None else self.look(cell)
        if target.kind in ("instance", "class"):
            known = self.field(target, name)
            method = self.method(target, name) if known is None or target.kind == "class" else None
            if method is not None:
                return self.bound(target, method)
            known = known or self.inherited(target, name)
            if known is not None:
                return known
            if target.kind == "class":
                return NOTHING
        else:
            known = self.field(target, name)
            if known is not None:
                return known
        if name in _OF_FORM or name in ("shape", "size", "training", "num_classes", "classes"):
            return NOTHING
        return Value(
            frozenset((target,)), 0, self.content(target).sites if target.kind in ("module", "tensor") else frozenset()
        )

    def field(self, target: Object, name: str) -> Value | None:
        """An attribute that the script has set."""
        cell = self.state.get((target, name))
        return None if cell is None else self.look(cell)

    def inherited(self, target: Object, name: str) -> Value | None:
        """What the classes of an object have under a name."""
        waiting, seen = [target] if target.kind == "class" else target.bases[:1], set[int]()
        while waiting:
            of_class = waiting.pop(0)
            known = None if id(of_class) in seen else self.field(of_class, name)
            if known is not None:
                return known
            if id(of_class) not in seen:
                seen.add(id(of_class))
                waiting += [base for base in of_class.bases if base.kind == "class"]
        return None

    def method(self, target: Object, name: str) -> Object | None:
        """A function of a class of the script."""
        known = self.inherited(target, name)
        return None if known is None else next((o for o in known.objects if o.kind == "function"), None)

    def bound(self, target: Object, function: Object) -> Value:
        """A method of an object; the value of a property."""
        decorators = {
            source.dotted(d.func if isinstance(d, ast.Call) else d)
            for d in getattr(function.definition, "decorator_list", [])
        }
        if not decorators.isdisjoint(_PROPERTIES):
            return self.invoke(function, [Value.of(target)], {}, function.definition or ast.Pass())
        if "staticmethod" in decorators or (target.kind == "class" and "classmethod" not in decorators):
            return Value.of(function)
        key = hash((id(target), id(function)))
        method = self.made.get(key)
        if method is None:
            method = self.made[key] = Object("method", function.name, function.node, function.definition, owner=target)
            method.bases = [function]
        return Value.of(method)

    def _operation(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        value = compute(self.use(left), self.use(right))
        return value._replace(texts=text((left, right))) if isinstance(node.op, ast.Add) else value

    # -- parts
    # ----------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.eval(node.value), self.eval(node.slice)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        cells = [cell for o in base.objects if (cell := self.state.get((o, CONTENT))) is not None]
        if base.items is not None and isinstance(at, int) and -len(base.items) <= at < len(base.items):
            item = base.items[at]._replace(sites=base.items[at].sites | base.sites)
            return item if not any(cell.writes for cell in cells) else merge((item, *(self.look(cell) for cell in cells)))
        if self.is_of_data_set(node.value):
            base = base._replace(flags=base.flags | OWNED)
        numbered = bool(index.flags & NUMBER)
        index = self.use(index)
        flags = (base.flags | index.flags) & ~NUMBER
        sites = base.sites if numbered else base.sites | index.sites
        found = []
        for target in base.objects:
            if target.kind in ("batch", "evaluation", "shards"):
                return NOTHING
            if target.kind == "external" and target.name == "os.environ":
                return self.of_process(self.eval(node.slice).texts, node)
            if isinstance(node.slice, ast.Constant):
                known = self.field(target, f"[{node.slice.value!r}]")
                if known is not None:
                    found.append(known)
                    continue
            inner = self.content(target)
            if _is_last(node.slice) and self._is_appended_now(target):
                inner = inner._replace(sites=frozenset())
            kept = (
                inner.objects
                if target.kind in ("list", "dict", "deque", "set", "instance") and not target.is_optimizer()
                else frozenset((target,)) | inner.objects
            )
            found.append(Value(kept, inner.flags, inner.sites))
        value = merge(found) if found else NOTHING
        inner_sites = frozenset(s for s in value.sites if not s.inside) if numbered else value.sites
        return value._replace(
            flags=value.flags | flags, sites=inner_sites | sites, items=value.items if len(found) == 1 else None
        )

    def is_of_data_set(self, node: ast.AST) -> bool:
        """Whether it is an attribute of the dataset whose sample is fetched: what is in it are
        samples."""
        at = node.value if isinstance(node, ast.Attribute) else None
        return self.data_set is not None and isinstance(at, ast.Name) and self.data_set in self._name(at).objects

    def _is_appended_now(self, target: Object) -> bool:
        cell = self.state.get((target, CONTENT))
        return cell is not None and any(not write.stale and write.site.how == "append" for write in cell.writes)

    def _compare(self, node: ast.Compare) -> Value:
        parts = [self.eval(node.left), *(self.eval(part) for part in node.comparators)]
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return mix(parts)  # whether it is None: not what is in it
        return mix([self.use(part) for part in parts])

    def _if_expression(self, node: ast.IfExp) -> Value:
        test = self.use(self.eval(node.test))
        value = merge((self.eval(node.body), self.eval(node.orelse)))
        return value._replace(flags=value.flags | (test.flags & DATA), sites=value.sites | test.sites)

    def _tuple(self, node: ast.Tuple) -> Value:
        items: list[Value] = []
        for part in node.elts:
            value = self.eval(part)
            items += value.items if isinstance(part, ast.Starred) and value.items is not None else [value]
        return Value.made(0, frozenset(), tuple(items))

    def _collection(self, node: ast.List | ast.Set) -> Value:
        made = self.make(node, "list" if isinstance(node, ast.List) else "set")
        items = [self.eval(part) for part in node.elts]
        self.state.put((made, CONTENT), merge(items) if items else NOTHING, None)
        return Value(frozenset((made,)), 0, frozenset(), tuple(items) if items else None)

    def _dict(self, node: ast.Dict) -> Value:
        made = self.make(node, "dict")
        content = NOTHING
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.eval(value) if key is not None else self.eval(value).own()
            if isinstance(key, ast.Constant):
                self.state.put((made, f"[{key.value!r}]"), found, None)
            elif key is not None:
                self.eval(key)
            content = merge((content, found))
        self.state.put((made, CONTENT), content, None)
        return Value.of(made)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        kind = {ast.DictComp: "dict", ast.SetComp: "set"}.get(type(node), "list")
        made = self.make(node, kind)
        outer = self.frame
        self.frame = Frame(outer, outer.path)
        first = node.generators[0]
        over_shards = not self.inside and source.reads_shards(first.iter)
        content, flags = [NOTHING], 0
        sites = frozenset(self.control)

        def body() -> None:
            nonlocal flags, sites
            for generator in node.generators:
                self.bind(generator.target, self.iterate(generator.iter)[0])
                for test in generator.ifs:
                    tested = self.use(self.eval(test))
                    sites |= tested.sites
                    flags |= tested.flags & DATA
            if isinstance(node, ast.DictComp):
                key = self.use(self.eval(node.key))
                sites |= key.sites
                held = self.eval(node.value)
                content.append(held if isinstance(node.value, ast.Call) else held.own())
            else:
                content.append(self.eval(node.elt))

        if over_shards:
            self.over_shards(node, body)
            self.frame = outer
            value = merge(content)
            value = value._replace(flags=value.flags | DATA)
            site = self.site(node, "the list of the shards' values", "append")._replace(inside=True)
            self.state.put((made, CONTENT), value, Write(site, self.loops, stale=True))
            return Value.of(made)
        body()
        self.frame = outer
        value = merge(content)
        self.state.put((made, CONTENT), value._replace(flags=value.flags | flags, sites=value.sites | sites), None)
        return Value.of(made)

    def _lambda(self, node: ast.Lambda) -> Value:
        made = self.make(node, "function", "lambda")
        made.definition, made.frame = node, self.frame
        return Value.of(made)

    def _formatted(self, node: ast.FormattedValue) -> Value:
        value = self.eval(node.value)
        return self.written(value)._replace(texts=value.texts if node.format_spec is None else frozenset())

    def _joined(self, node: ast.JoinedStr) -> Value:
        parts = [self.eval(part) for part in node.values]
        return mix([self.use(part) for part in parts])._replace(texts=text(parts))

    def _named(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value, node.value)
        return value

    def _yield_from(self, node: ast.YieldFrom) -> Value:
        element, kind = self.iterate(node.value)
        if (kind == "shards" or source.reads_shards(node.value)) and not self.inside:
            self.over_shards(node, lambda: void(self.yielded(element)))
        else:
            self.yielded(element)
        return NOTHING


def _constant(node: ast.Constant) -> Value:
    return NOTHING._replace(texts=frozenset((node.value,))) if isinstance(node.value, str) else NOTHING


def void(_: Value) -> None:
    """For what is called for its effect."""


def _is_last(index: ast.AST) -> bool:
    return (
        isinstance(index, ast.UnaryOp)
        and isinstance(index.op, ast.USub)
        and isinstance(index.operand, ast.Constant)
        and index.operand.value == 1
    )
