"""What statements do."""

from __future__ import annotations

import ast
from collections.abc import Callable

from typing_extensions import override

from lockstep._tools.check import names, source
from lockstep._tools.check.bindings import Bindings, is_whole
from lockstep._tools.check.expressions import void
from lockstep._tools.check.state import CONTENT, join
from lockstep._tools.check.values import NOTHING, Frame, Object, Value


class Statements(Bindings):
    """Runs statements."""

    def __init__(self) -> None:
        super().__init__()
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
            elif isinstance(target, ast.Subscript) and is_whole(target.slice):
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
        if (kind := names.kind_of(name)) is not None:
            self.sink(self.use(value), node, kind)

    # -- ways
    # ----------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> bool:
        if isinstance(node.test, ast.Compare) and source.dotted(node.test.left) == "__name__":
            return self.block(node.body)
        test = self.use(self.eval(node.test))
        # of a model's parameters, which are one here
        if _asks_which(node.test) and not node.orelse:
            others = self.state.copy()
            if all(isinstance(part, ast.Continue) for part in node.body) or not self.block(node.body):
                self.state = others  # which go on
            return True
        before = self.state
        ends = []
        for body in (node.body, node.orelse):
            self.state = before.copy()
            with self.under(test):
                if self.block(body):
                    ends.append(self.state)
        joined = join(ends)
        if joined is None:
            return False
        if isinstance(node.test, ast.Call) and source.dotted(node.test.func) in ("isinstance", "hasattr"):
            given = ((k, cell) for k, cell in ends[0].cells.items() if isinstance(k[0], Object) and k[1] in k[0].given)
            joined.cells.update(given)  # it asks which of a model's modules this is, not when
        self.state = joined
        return True

    def _jump(self, node: ast.Break | ast.Continue) -> bool:
        if self.jumps:
            jumps = self.jumps[-1]
            (jumps.broken if isinstance(node, ast.Break) else jumps.continued).append(self.state)
        if self.control:
            self.sink(NOTHING, node, "control")
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
        for item in node.items:
            value = self.eval(item.context_expr)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, item.context_expr)
        return self.block(node.body)

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

    # -- definitions
    # ----------------------------------------------------------------------------------------------

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        made = self.make(node, "function", node.name)
        made.definition, made.frame = node, self._defining_frame()
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

    def _import_all(self, module: str, known: Value | None) -> None:
        stars = self.frame.module().stars
        if known is None:
            stars.append(module)
            return
        frame = next(iter(known.objects)).frame
        for (owner, name), cell in list(self.state.cells.items()):
            if owner is frame:
                self.state.put(self.key_of(name), cell.value, None)
        if frame is not None:
            stars += frame.stars

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
                self._import_all(module, known)
                continue
            inner = f"{module}.{alias.name}" if node.module else module + alias.name
            value = None
            if known is not None:
                frame = next(iter(known.objects)).frame
                held = self.state.get((frame, alias.name)) if frame is not None else None
                value = None if held is None else self.look(held)
            value = value or self.file(inner) or (NOTHING if known is not None else self.external(inner))
            self.state.put(self.key_of(alias.asname or alias.name), value, None)


def _asks_which(test: ast.AST) -> bool:
    """Whether a test is of one parameter among others: whether it has a gradient, or is to have
    one."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if isinstance(test, ast.Compare) and isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None:
        test = test.left
    return isinstance(test, ast.Attribute) and test.attr in ("grad", "requires_grad") and isinstance(test.value, ast.Name)
