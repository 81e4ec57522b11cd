"""Loops: over shards, over steps, over epochs, and all others."""

from __future__ import annotations

import ast
from collections.abc import Callable

from typing_extensions import override

from lockstep._tools.check import names, source
from lockstep._tools.check.expressions import Expressions
from lockstep._tools.check.state import State, join
from lockstep._tools.check.values import DATA, NOTHING, NUMBER, OWNED, Frame, Object, Value, merge

SHARDS, BATCHES, EVALUATION, EPOCHS = "shards", "batches", "evaluation", "epochs"
"""The kinds of loops that matter; any other has the kind ``""``."""
_LOADERS = {"loader", "opaque", "list", "iterator", "instance", "stream"}
"""The kinds of objects that yield batches once they are prepared."""


class Jumps:
    """Where ``break`` and ``continue`` of a loop were reached."""

    def __init__(self) -> None:
        self.broken: list[State] = []
        self.continued: list[State] = []


class Loops(Expressions):
    """Runs loops."""

    def __init__(self) -> None:
        super().__init__()
        self.jumps: list[Jumps] = []
        self.with_shards: set[str] = set()
        self.on_yield: list[Callable[[Value], None]] = []
        self.yields_batches = False

    # -- what is iterated
    # ----------------------------------------------------------------------------------------------

    @override
    def iterate(self, node: ast.AST, target: ast.AST | None = None) -> tuple[Value, str]:
        if isinstance(node, ast.Call) and node.args:
            name = source.dotted(node.func)
            last = name.rpartition(".")[2]
            if last == "enumerate":
                return self._enumerate(node, target)
            if last in ("zip", "zip_longest"):
                return self._zip(node, target)
            if last in names.WRAPPERS and last != "trange":
                for argument in (*node.args[1:], *(keyword.value for keyword in node.keywords)):
                    self.eval(argument)
                return self.iterate(node.args[0], target)
            if last in ("islice", "cycle", "chain"):
                element, kind = self.iterate(node.args[0])
                if last == "islice" and kind == BATCHES:
                    self._cut_short(node)
                return element, kind
        return self.element(self.eval(node), node)

    def element(self, value: Value, node: ast.AST) -> tuple[Value, str]:
        """What iterating a value yields, and what that is."""
        if value.items is not None and not any(o.kind in ("list", "set") for o in value.objects):
            return merge(value.items), ""
        found, kind = [Value.made(value.flags, value.sites)], ""
        for target in value.objects:
            owned = OWNED if target.hands_out or target.kind == "list" else value.flags & OWNED
            if target.kind == "epochs":
                return NOTHING, EPOCHS
            if target.kind in ("shards", "evaluation"):
                return Value.made(DATA | owned), SHARDS if target.kind == "shards" else EVALUATION
            if target.kind in ("stream", "instance") and self._generator_of(target) is not None:
                got: list[Value] = []
                self.run_generator(target, got.append)
                found += got
                kind = BATCHES if any(o is self.batch for v in got for o in v.objects) else kind
            elif target.is_prepared and target.kind in _LOADERS and not target.is_optimizer():
                found.append(Value(frozenset((self.batch,)), owned))
                kind = BATCHES
                if target.kind == "loader" and not self.inside:
                    self.sink(self.served(target), node, "weights")
            elif target.kind in ("list", "dict", "set", "deque", "queue"):
                found.append(self.content(target))
            elif target.kind not in ("external", "function", "class", "team", "loader", "iterator"):
                found.append(Value(frozenset((target,)) | self.content(target).objects, 0, self.content(target).sites))
        return merge(found), kind

    def _enumerate(self, node: ast.Call, target: ast.AST | None) -> tuple[Value, str]:
        for argument in node.args[1:]:
            self.eval(argument)
        element, kind = self.iterate(node.args[0])
        kind = kind or (BATCHES if self.yields_batches else "")
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
        number = self.number(node, first, kind)
        return Value.made(element.flags, element.sites, (number, element)), kind

    def _cut_short(self, node: ast.AST, how: str = "") -> None:
        """A loop over steps ends by a count of the script."""
        if not self.in_step and not self.inside:
            self.report.add("LS207", self.site(node, ast.unparse(node)[:40], how))

    def number(self, node: ast.AST, target: ast.AST | None, kind: str) -> Value:
        """The number that ``enumerate`` gives."""
        if kind == EPOCHS:
            return self._beside_epochs(NOTHING, node, target)
        name = source.shown(target) if target is not None else "enumerate"
        place = target if target is not None else node
        if kind == BATCHES and not self.in_step and not self.inside:
            return Value.made(0, frozenset((self.site(place, name, "number")._replace(inside=False),)))
        if kind in (SHARDS, EVALUATION) and not self.inside:
            return Value.made(NUMBER, self.place(place, name, "shard number"))
        return NOTHING

    def _beside_epochs(self, item: Value, node: ast.AST, target: ast.AST | None) -> Value:
        """An item that restarts at its first value on a resume, while ``team.epochs`` continues."""
        if self.in_step or self.inside:
            return item
        names = [target] if target is None or not isinstance(target, (ast.Tuple, ast.List)) else target.elts
        name = source.shown(names[0]) if names[0] is not None else ast.unparse(node)[:40]
        site = self.site(names[0] or node, name, "beside epochs")._replace(inside=False)
        return item._replace(sites=item.sites | {site}, items=None)

    def _zip(self, node: ast.Call, target: ast.AST | None) -> tuple[Value, str]:
        is_spread = any(isinstance(argument, ast.Starred) for argument in node.args)
        found = [self.iterate(a.value if isinstance(a, ast.Starred) else a) for a in node.args]
        kinds = [kind for _, kind in found]
        kind = next((k for k in (SHARDS, BATCHES, EVALUATION) if k in kinds), "")
        items = tuple(element for element, _ in found)
        if kind == BATCHES and any(map(_is_bound, node.args)):
            self._cut_short(node)
        if EPOCHS in kinds and not is_spread:
            bound = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == len(items) else [None] * len(items)
            items = tuple(
                item if of == EPOCHS or _is_repeat(argument) else self._beside_epochs(item, argument, at)
                for item, of, argument, at in zip(items, kinds, node.args, bound, strict=True)
            )
        if kind in (BATCHES, SHARDS) and not is_spread:
            counts = [
                isinstance(a, ast.Call) and source.dotted(a.func).rpartition(".")[2] in ("count", "range") for a in node.args
            ]
            bound = target.elts if isinstance(target, ast.Tuple) and len(target.elts) == len(items) else [None] * len(items)
            items = tuple(
                self.number(node, at, kind) if counted else item
                for item, counted, at in zip(items, counts, bound, strict=True)
            )
        if kind == SHARDS:  # side by side: what an earlier pass has put in a list for each shard
            items = tuple(
                item
                if item.flags & NUMBER
                else Value(item.objects, item.flags | DATA, frozenset(s for s in item.sites if not s.inside))
                for item in items
            )
        if is_spread:
            return merge(items), kind
        return Value.made(0, frozenset(), items), kind

    # -- generators of the script
    # ----------------------------------------------------------------------------------------------

    def _generator_of(self, target: Object) -> Object | None:
        if target.kind == "stream":
            return target if target.definition is not None else None
        method = self.method(target, "__iter__")
        return (
            method
            if method is not None and method.definition is not None and source.is_generator(method.definition)
            else None
        )

    # A generator and the loop over it take turns, and each sees what the other has written. So the
    # loop is turned inside out: the generator's body runs as a function, and each `yield` in it
    # runs the loop's body as a callback, in the frame of the loop.

    def run_generator(self, target: Object, on_yield: Callable[[Value], None]) -> None:
        """Run a generator of the script; what it yields goes to ``on_yield``, in the frame that
        iterates."""
        function = self._generator_of(target)
        if function is None or function.definition is None:
            return
        frame, inside_step = self.frame, self.in_step

        def handle(value: Value) -> None:
            within = self.frame
            self.frame = frame
            try:
                on_yield(value)
            finally:
                self.frame = within

        self.on_yield.append(handle)
        try:
            if target.kind == "stream":
                args, keywords = target.arguments or ([], {})
                self.run(function, args, keywords)
            else:
                self.run(function, [Value.of(target)], {})
        finally:
            self.on_yield.pop()
            self.in_step = inside_step

    @override
    def yielded(self, value: Value) -> Value:
        if self.on_yield:
            # While the loop's body runs, a `yield` in it belongs to the generator around it.
            handler = self.on_yield.pop()
            try:
                handler(value)
            finally:
                self.on_yield.append(handler)
        return NOTHING

    # -- loops
    # ----------------------------------------------------------------------------------------------

    def run_for(self, node: ast.For | ast.AsyncFor) -> None:
        """Run a ``for`` loop."""
        stream, wrapped = self._stream(node.iter)
        if stream is not None:
            self._over_generator(node, stream, wrapped)
            return
        self.yields_batches = not self.in_step and not self.inside and bool(self._batches_of(node))
        element, kind = self.iterate(node.iter, node.target)
        self.yields_batches = False
        if kind == SHARDS or (not self.inside and source.reads_shards(node.iter)):
            self._over_shards(node, element)
        elif kind == EVALUATION:
            self._over_evaluation(node, element)
        else:
            self._over_others(node, element, kind)

    def _stream(self, node: ast.AST) -> tuple[Object | None, bool]:
        numbered = False
        while isinstance(node, ast.Call) and node.args:
            last = source.dotted(node.func).rpartition(".")[2]
            if last == "enumerate":
                numbered = True
            elif last not in names.WRAPPERS:
                break
            node = node.args[0]
        if not isinstance(node, (ast.Call, ast.Name, ast.Attribute)):
            return None, False
        value = self.eval(node)
        streams = [
            o for o in value.objects if o.kind in ("stream", "instance") and not o.is_prepared and self._generator_of(o)
        ]
        return (streams[0] if len(streams) == 1 else None), numbered

    def _over_generator(self, node: ast.For | ast.AsyncFor, stream: Object, numbered: bool) -> None:
        leaving = Jumps()

        def on_yield(value: Value) -> None:
            if numbered:
                kind = BATCHES if self.batch in value.objects else ""
                in_step, self.in_step = self.in_step, False
                first = node.target.elts[0] if isinstance(node.target, ast.Tuple) else None
                value = Value.made(value.flags, value.sites, (self.number(node.iter, first, kind), value))
                self.in_step = in_step
            self.bind(node.target, value, node.iter)
            jumps = Jumps()
            self.one_iteration(node.body, jumps)
            leaving.broken += jumps.broken

        self.run_generator(stream, on_yield)
        if leaving.broken:
            self.state = join([self.state, *leaving.broken]) or self.state

    def one_iteration(self, body: list[ast.stmt], jumps: Jumps) -> None:
        """Run a loop's body once."""
        self.jumps.append(jumps)
        try:
            alive = self.block(body)
        finally:
            self.jumps.pop()
        ends = [*([self.state] if alive else []), *jumps.continued]
        jumps.continued = []
        if not ends:  # every way through the body breaks: what follows the loop begins there
            ends = jumps.broken
        self.state = join(ends) or self.state

    def _over_shards(self, node: ast.For | ast.AsyncFor, element: Value) -> None:
        if self.inside:  # refused when it runs
            self.bind(node.target, element)
            self.one_iteration(node.body, Jumps())
            return
        if element.items is None:
            element = element._replace(flags=element.flags | DATA)
        jumps = Jumps()

        def body() -> None:
            self.shard_names = [part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)]
            self.bind(node.target, element)
            self.one_iteration(node.body, jumps)

        self.over_shards(node, body)
        self._leave(jumps)

    def _over_evaluation(self, node: ast.For | ast.AsyncFor, element: Value) -> None:
        batches = self._batches_of(node)
        if batches or self.inside:
            plain = Value(frozenset((self.batch,)), element.flags & OWNED)
            if element.items is not None:  # numbered, and the same everywhere
                element = Value.made(0, frozenset(), tuple(_unnumbered(item) for item in element.items))
            self.bind(node.target, element)
            for name in batches:
                self.state.put((self.frame, name), plain, None)
            jumps = Jumps()
            self.one_iteration(node.body, jumps)
        else:  # as if it were the loop over shards: what is written in it is of one process anyway
            jumps = Jumps()

            def body() -> None:
                self.bind(node.target, element)
                self.one_iteration(node.body, jumps)

            self.over_shards(node, body)
        self._leave(jumps)

    def _over_others(self, node: ast.For | ast.AsyncFor, element: Value, kind: str) -> None:
        batches = self._batches_of(node)
        is_step = not self.in_step and not self.inside and (kind == BATCHES or bool(batches) or self._takes_next(node))
        is_epoch = not is_step and not self.in_step and not self.inside and self._has_steps(node.body)
        if is_step and kind != BATCHES and _is_bound(node.iter) and self._takes_next(node):
            self._cut_short(node.iter, "next")

        def bind() -> None:
            self.bind(node.target, element, node.iter)
            for name in batches:
                bound = self.state.get((self.frame, name))
                flags = 0 if bound is None else bound.value.flags & OWNED
                self.state.put((self.frame, name), Value(frozenset((self.batch,)), flags), None)

        self._iterations(node, bind, is_step=is_step, is_epoch=is_epoch)

    def run_while(self, node: ast.While) -> None:
        """Run a ``while`` loop."""
        is_step = not self.in_step and not self.inside and self._takes_next(node)
        is_epoch = not is_step and not self.in_step and not self.inside and self._has_steps(node.body)

        def test() -> None:
            value = self.use(self.eval(node.test))
            if value.sites:
                self.sink(value, node.test, "control")

        self._iterations(node, test, is_step=is_step, is_epoch=is_epoch)

    def _iterations(
        self, node: ast.For | ast.AsyncFor | ast.While, begin: Callable[[], None], *, is_step: bool, is_epoch: bool
    ) -> None:
        loops, in_step, around = self.loops, self.in_step, self.num_calls_around
        jumps = Jumps()
        number = id(node)
        if is_step or is_epoch:
            self.num_calls_around = len(self.calls)
            self.loops = (*loops, number)
            self.in_step = is_step
        try:
            # Any other loop runs once: its iterations belong to one shard or one step, so what one
            # of them reads from an earlier one is not from another shard or step.
            for _ in range(2 if is_step or is_epoch or self._has_steps(node.body) else 1):
                if is_step or is_epoch:
                    self.state.age(number)
                begin()
                self.one_iteration(node.body, jumps)
        finally:
            self.loops, self.in_step, self.num_calls_around = loops, in_step, around
        self._leave(jumps)

    def _leave(self, jumps: Jumps) -> None:
        if jumps.broken:
            self.state = join([self.state, *jumps.broken]) or self.state

    def _batches_of(self, node: ast.For | ast.AsyncFor) -> set[str]:
        """The names that a loop binds to steps' batches, as far as its body shows."""
        bound = source.bound_names(node.target)
        return source.shards_read_of(node.body, bound)

    def _has_steps(self, body: list[ast.stmt]) -> bool:
        return any(
            ".shards" in called or not called.isdisjoint(self.with_shards) for called in map(source.called_names, body)
        )

    def _takes_next(self, node: ast.For | ast.AsyncFor | ast.While) -> bool:
        if not any("next" in called for called in map(source.called_names, node.body)):
            return False
        own = [
            part for part in source.own_nodes(node.body) if isinstance(part, ast.Call) and source.dotted(part.func) == "next"
        ]
        return bool(own) and any(
            o.kind == "iterator" and o.is_prepared for call in own if call.args for o in self._peek(call.args[0]).objects
        )

    def _peek(self, node: ast.AST) -> Value:
        frame: Frame | None = self.frame
        while isinstance(node, ast.Name) and frame is not None:
            cell = self.state.get((frame, node.id))
            if cell is not None:
                return cell.value
            frame = frame.parent
        return NOTHING


def _is_bound(node: ast.AST) -> bool:
    """Whether it is a ``range`` of a number that is not the length of something."""
    if not isinstance(node, ast.Call) or source.dotted(node.func) not in ("range", "trange"):
        return False
    return not any(isinstance(part, ast.Call) and source.dotted(part.func) == "len" for part in ast.walk(node))


def _is_repeat(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and source.dotted(node.func).rpartition(".")[2] == "repeat"


def _unnumbered(value: Value) -> Value:
    return value._replace(flags=value.flags & ~NUMBER, sites=frozenset(s for s in value.sites if s.how != "shard number"))
