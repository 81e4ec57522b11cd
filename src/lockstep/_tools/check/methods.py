"""Methods, known by their names and by what they are called on."""

from __future__ import annotations

import ast

from typing_extensions import override

from lockstep._tools.check import hosts, names, samples, source
from lockstep._tools.check.libraries import Libraries
from lockstep._tools.check.state import CONTENT
from lockstep._tools.check.values import DATA, NOTHING, RANDOM, SIZE, Object, Site, Value, merge


class Methods(Libraries):
    """Knows methods that are not the script's."""

    @override
    def of_method(
        self, node: ast.Call, receiver: Value, function: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        func = node.func
        assert isinstance(func, ast.Attribute)
        name = func.attr
        given = [*args, *keywords.values()]
        kinds = {o.kind for o in receiver.objects}
        if "team" in kinds:
            return self.of_team(name, node, args, keywords)
        if not self.inside:
            self._train_by_host(node, name, {o for value in (receiver, *given) for o in value.objects})
        if kinds & {"batch", "evaluation"} or (name == "add" and not kinds and not args and keywords and self.inside):
            self.of_batch(node, given)
            return NOTHING
        if any(o.kind in ("method", "function", "class") for o in function.objects):
            return None
        if any(o.kind in ("instance", "module") for o in function.objects - receiver.objects):
            return None  # an object that is kept in an attribute, and called
        if "external" in kinds or "file" in kinds:
            return None
        if name == "backward" and self.inside:
            return NOTHING
        if name in names.GRADIENT_HOOKS:
            self.gradient_hooks += [o for value in given for o in value.objects if o.kind in ("function", "method")]
            return NOTHING
        if name == "register_buffer":
            for target in receiver.objects:
                if node.args and isinstance(node.args[0], ast.Constant):
                    buffer = self.make(node, "tensor", str(node.args[0].value))
                    buffer.is_buffer = True
                    target.buffers.add(buffer.name)
                    target.children.add(buffer)
                    self.state.put((target, buffer.name), Value.of(buffer), None)
            return NOTHING
        if samples.is_moving(func) and self.change_sample(receiver, func.value):
            return receiver
        if not receiver.objects:
            return self._of_unknown(node, func, receiver, given)
        results = [self._of_object(target, node, func, given, receiver.sites) for target in receiver.objects]
        if any(result is None for result in results):
            return None
        value = merge([result for result in results if result is not None])
        return value._replace(sites=value.sites | receiver.sites)

    def _train_by_host(self, node: ast.Call, name: str, given: set[Object]) -> None:
        """Run the methods that a library calls once per shard, where the script calls the library
        to train."""
        for target in sorted((o for o in given if o.kind == "instance"), key=lambda o: o.name):
            for called, place in hosts.called_per_shard(target.library_classes(), name):
                method = self.method(target, called)
                if method is not None:
                    args = [Value.of(target), *([NOTHING] * (place - 1)), Value.made(DATA)]
                    self._per_shard(node, method, args)

    def _per_shard(self, node: ast.Call, method: Object, args: list[Value]) -> None:
        def body() -> None:
            self.use(self.invoke(method, args, {}, node))

        self.over_shards(node, body)

    def _of_unknown(self, node: ast.Call, func: ast.Attribute, receiver: Value, given: list[Value]) -> Value | None:
        name = func.attr
        used = self.used(given)
        if names.is_in_place(name) or name in names.APPENDING:
            # else a result of this shard's own
            if not (receiver.flags & DATA and names.is_in_place(name)):
                self.change_root(func.value, used, own=name not in names.EMPTYING)
            return Value.made(receiver.flags | used.flags, receiver.sites | used.sites)
        if name == "clone":
            return self._clone(node, receiver.flags, receiver.sites)
        if name in ("size", "numel", "dim", "__len__") and receiver.flags & DATA:
            return Value.made(SIZE)
        return None

    def _of_object(
        self, target: Object, node: ast.Call, func: ast.Attribute, given: list[Value], chosen: frozenset[Site]
    ) -> Value | None:
        name = func.attr
        used = self.used(given)
        raw = merge(given) if given else NOTHING
        shown = source.shown(func.value)
        content = self.content(target)
        if target.kind == "draws":
            return self.draw(target, name, node, shown, used)
        if target.kind in ("per shard", "kept state", "shards"):
            return NOTHING
        if target.kind in ("list", "dict", "set", "deque", "queue"):
            return self._of_container(target, name, node, shown, raw, used, content)
        if target.kind == "iterator" and name in ("next", "__next__"):
            return self.next(target, node, shown)
        if target.kind in ("module", "tensor", "opaque", "instance", "loader"):
            if name in ("eval", "train"):
                target.is_evaluating = name == "eval" or (
                    bool(node.args) and isinstance(node.args[0], ast.Constant) and not node.args[0].value
                )
                return Value.of(target)
            if (
                names.is_in_place(name)
                or name in ("load_state_dict", "update_parameters")
                or (target.is_copy and name in ("update", "step"))
            ):
                if name == "load_state_dict":
                    target.is_early = False
                if target.is_prepared and not self.inside:
                    self.sink(used, node, "answer")
                reads_itself = any(shown in source.loaded_names(argument) for argument in node.args)
                if name in names.EMPTYING and not reads_itself:
                    self.replace(target, node, shown, raw if target.kind != "module" else used)
                else:
                    self.change(target, node, shown, "change", used)
                return Value(frozenset((target,)), 0, self.content(target).sites)
            if name in names.SAME_OBJECT:
                return Value(frozenset((target,)), used.flags, content.sites | used.sites)
            if name == "clone":
                return self._clone(node, content.flags | used.flags, content.sites | used.sites)
            if name in ("item", "tolist", "numpy", "mean", "sum", "norm", "float", "long", "int"):
                return Value.made(content.flags | used.flags, content.sites | used.sites)
            if target.kind == "opaque" and not target.is_prepared and names.SYNCHRONISED.match(target.name):
                return Value.made(used.flags)
            self.unknown = node
            if target.kind == "instance" and self.method(target, name) is None:
                return used
            return Value.made(content.flags | used.flags, content.sites | used.sites)
        if target.kind == "optimizer":
            for value in given:
                self.call_back(value)
            if not self.inside:
                self.sink(used._replace(sites=used.sites | chosen), node, "answer")
            return NOTHING
        return None

    def _clone(self, node: ast.Call, flags: int, sites: frozenset[Site]) -> Value:
        made = self.make(node, "tensor")
        copied = Value.made(flags, sites).own()
        self.state.put((made, CONTENT), copied, None)
        return copied._replace(objects=frozenset((made,)))

    def _of_container(
        self, target: Object, name: str, node: ast.Call, shown: str, raw: Value, used: Value, content: Value
    ) -> Value:
        if name == "update" and target.kind == "dict" and self.inside and not used.sites and _has_constant_keys(node):
            self.renew(target, node, shown, _stored(raw, used))
            return NOTHING
        if name in names.APPENDING or name in ("add", "update", "setdefault", "subtract"):
            how = "average" if any(o.is_copy for o in raw.objects) else "append"
            self.change(target, node, shown, how, _stored(raw, used))
            return Value(content.objects, content.flags, content.sites) if name == "setdefault" else NOTHING
        if name == "pop" and target.kind == "list" and not node.args:
            if self.inside:  # what this shard has put there last
                cell = self.state.get((target, CONTENT))
                fresh = cell is not None and any(not w.stale for w in cell.writes if w.site.inside)
                if fresh:
                    self.state.put((target, CONTENT), NOTHING, None)
                    return Value(content.objects, content.flags | DATA)
            return content
        if name in names.TAKING or name == "pop":
            if name != "get" or target.kind == "queue":
                self.change(target, node, shown, "change", Value.made(content.flags))
            return content
        if name in ("copy", "items", "values", "keys"):
            return Value(frozenset((target,)), content.flags, content.sites)
        return Value.made(content.flags | used.flags, content.sites | used.sites)

    def draw(self, target: Object, name: str, node: ast.Call, shown: str, used: Value) -> Value:
        """A method of a generator of random numbers."""
        if name in ("manual_seed", "seed", "set_state"):
            self.state.put((target, CONTENT), used, None)
            return Value.of(target)
        return self.drawn(target, node, shown)

    @override
    def drawn(self, target: Object, node: ast.AST, shown: str) -> Value:
        before = self.content(target)
        self.change(target, node, shown, "draw", Value.made(RANDOM), own=True)
        return Value.made(RANDOM, before.sites)

    @override
    def next(self, target: Object, node: ast.AST, shown: str) -> Value:
        if target.is_prepared:
            return Value.of(self.batch)
        before = self.content(target)
        self.change(target, node, shown, "next", Value.made(DATA if self.inside else 0), own=True)
        return Value.made(DATA if self.inside else 0, before.sites)


def _stored(raw: Value, used: Value) -> Value:
    return Value(raw.objects, raw.flags | used.flags, raw.sites | used.sites)


def _has_constant_keys(node: ast.Call) -> bool:
    keys = [key for argument in node.args if isinstance(argument, ast.Dict) for key in argument.keys]
    return all(isinstance(argument, ast.Dict) for argument in node.args) and all(
        isinstance(key, ast.Constant) for key in keys
    )
