"""Calls of Python's and PyTorch's, known by their names."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from typing_extensions import override

from lockstep._tools.check import names, samples, source
from lockstep._tools.check.findings import join_arguments
from lockstep._tools.check.kernels import refused_operation
from lockstep._tools.check.loops import BATCHES, EVALUATION, SHARDS
from lockstep._tools.check.state import CONTENT
from lockstep._tools.check.teams import Teams
from lockstep._tools.check.values import (
    CLOCK,
    DATA,
    NOTHING,
    NUMBER,
    OWNED,
    RANDOM,
    RANKED,
    SIZE,
    WORLD,
    Object,
    Value,
    merge,
    mix,
)

_SHARED = {"tensor", "list", "dict", "set", "instance", "opaque"}
"""Kinds of objects that may be changed in place."""


class Libraries(Teams):
    """Knows functions and classes that are not the script's."""

    @override
    def of_library(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        given = [*args, *keywords.values()]
        last = name.rpartition(".")[2]
        if isinstance(node, ast.Call) and (operation := refused_operation(name, node)) and not self._makes_samples():
            self.report.add("LS401", self.site(node, source.shown(node.func), operation.name))
        if name in ("lockstep.join", "lockstep._joining.join.join"):
            self.has_joined = True
            for given_by_name in node.keywords if isinstance(node, ast.Call) else ():
                if given_by_name.arg is not None and given_by_name.arg not in join_arguments():
                    self.find("LS305", given_by_name, given_by_name.arg)
            return Value.of(self.team)
        if names.CLOCKS.match(name):
            return Value.made(CLOCK)
        if name in names.CONTAINERS:
            return self._container(names.CONTAINERS[name], node, args, keywords)
        if name in ("torch.manual_seed", "lightning.seed_everything", "transformers.set_seed"):
            self.is_seeded = True
            return NOTHING
        if name in names.GENERATORS:
            made = self.make(node, "draws", last)
            self.state.put((made, CONTENT), self.used(given), None)
            return Value.of(made)
        for keyword in ("generator",):
            for target in keywords.get(keyword, NOTHING).objects:
                if target.kind == "draws" and names.RANDOM_CALL.search(name):
                    return self.drawn(target, node, (self.name_of(target) or target.name or "module"))
        if name in names.LOADERS:
            return self._loader(node, args, keywords)
        if names.OPTIMIZERS.match(name):
            self.sink(self.used(given), node, "weights")
            return Value.of(self.make(node, "optimizer", last))
        if name in names.COPIES or names.AVERAGES.match(name):
            return self._copy(name, node, args)
        if name in names.COUNTERS:
            return Value.of(self.make(node, "iterator", last))
        if last in ("clip_grad_norm_", "clip_grad_value_"):
            self.sink(self.used(given), node, "answer")
        if names.MODULES.match(name):
            return self._module(name, node, given)
        if name == "torch.utils.data.get_worker_info":
            if self.in_data_set:
                return Value.made(NUMBER, self.place(node, "get_worker_info()", "worker"))
            return NOTHING
        if name in names.OF_PROCESS or (name in names.VARIABLES and args):
            return self.of_process(names.OF_PROCESS.get(name) or args[0].texts, node, self.used(args[1:]))
        if name.startswith("torch.optim.lr_scheduler."):
            self.sink(self.used([*given, *map(self.call_back, given)]), node, "weights")
        if args and isinstance(node, ast.Call) and node.args and samples.changes_argument(name, node):
            self.change_sample(args[0], node.args[0])
        used = self.used(given)
        if names.RANDOM_CALL.search(name):
            flags = used.flags | RANDOM
            if names.TENSORS.match(name):
                return Value(frozenset((self.make(node, "tensor"),)), flags, used.sites)
            return Value.made(flags, used.sites)
        if names.TENSORS.match(name):
            made = self.make(node, "tensor")
            self.state.put((made, CONTENT), Value.made(used.flags, used.sites), None)
            return Value(frozenset((made,)), used.flags & ~SIZE)
        if name.startswith("torch.distributed.") and last.startswith(("all_reduce", "broadcast", "all_gather", "reduce")):
            for target in (o for value in given for o in value.objects):
                self.state.put((target, CONTENT), NOTHING, None)
            for argument in node.args if isinstance(node, ast.Call) else ():
                if isinstance(argument, ast.Name):
                    self.state.put(self.key_of(argument.id), NOTHING, None)
            return NOTHING
        for value in given:
            self.call_back(value)
        if isinstance(node, ast.Call):
            self.unknown = node
            if last[:1].isupper():
                made = self.make(node, "opaque", name)
                made.bases = [o for value in given for o in self.all_objects(value) if o.kind in ("function", "method")]
                if not self.inside:
                    made.children |= {
                        o for value in given for o in value.objects if o.kind in ("module", "instance", "opaque")
                    }
                return Value(frozenset((made,)), used.flags, used.sites)
        return Value.made(used.flags, used.sites)

    def _makes_samples(self) -> bool:
        """Whether code runs that makes samples, on the CPU."""
        return self.in_data_set or any(getattr(part, "name", "") in ("__getitem__", "__iter__") for part in self.active)

    @override
    def of_process(self, about: Iterable[str], node: ast.AST, otherwise: Value = NOTHING) -> Value:
        """A value that depends on the number of processes, or on which this is. ``about``: the
        names of environment variables with that meaning."""
        value = otherwise
        if "WORLD_SIZE" in about:
            value = mix((value, Value.made(WORLD, self.place(node, ast.unparse(node)[:40], "world"))))
        if "RANK" in about:
            value = mix((value, Value.made(RANKED)))
        return value

    def _loader(self, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        made = self.make(node, "loader", "DataLoader", fresh=False)
        made.is_prepared = made.is_kept = False
        self.sink(self.use(args[1] if len(args) > 1 else keywords.get("batch_size", NOTHING)), node, "weights")
        data = args[0] if args else keywords.get("dataset", NOTHING)
        for name, value in (("dataset", data), *keywords.items()):
            self.state.put((made, name), value, None)
        rows = self.read_data_set(data)
        collate = (
            next((k.value for k in node.keywords if k.arg == "collate_fn"), None) if isinstance(node, ast.Call) else None
        )
        given = self.read_collate(keywords.get("collate_fn", NOTHING), rows)
        if collate is None or (isinstance(collate, ast.Constant) and collate.value is None):
            whole = (
                next((k.value for k in node.keywords if k.arg == "batch_size"), None) if isinstance(node, ast.Call) else None
            )
            # else they are stacked
            given = rows if isinstance(whole, ast.Constant) and whole.value is None else NOTHING
        elif source.dotted(collate) in ("list", "tuple"):
            given = rows
        made.hands_out = self.owned(given) and not _has_workers(node)
        return Value.of(made)

    @override
    def served(self, loader: Object) -> Value:
        found = []
        for name in ("dataset", "sampler", "batch_sampler"):
            for target in (self.field(loader, name) or NOTHING).objects:
                method = self.method(target, "__getitem__" if name == "dataset" else "__iter__")
                if method is None:
                    cells = [cell for (owner, _), cell in self.state.cells.items() if owner is target]
                    found += [self.use(self.look(cell)) for cell in cells]
                elif method.definition is not None and not source.is_generator(method.definition):
                    before = self.state.copy()
                    found.append(self.use(self.run(method, [Value.of(target), NOTHING], {})))
                    self.state = before
        return mix(found)

    def read_data_set(self, data: Value) -> Value:
        """Run what loader workers run: each has separate objects, as each process has. Returns a
        sample."""
        rows = []
        for target in data.objects:
            method = self.method(target, "__getitem__") if target.kind == "instance" else None
            if method is not None and not self.inside:
                self.data_set = target
                try:
                    rows.append(self._as_worker(method, [Value.of(target), NOTHING]))
                finally:
                    self.data_set = None
            elif self._keeps_samples(target):
                rows.append(Value.made(OWNED))
        return Value.made(OWNED if any(map(self.owned, rows)) else 0)

    def _keeps_samples(self, data: Object) -> bool:
        if data.kind == "list":
            return any(o.kind in _SHARED for o in self.all_objects(self.content(data)))
        return data.kind == "opaque" and data.name.endswith("TensorDataset")

    def read_collate(self, collate: Value, row: Value) -> Value:
        """Run a ``collate_fn``, in which workers are alone, too, on a list of samples. Returns a
        batch."""
        batches, rows = [], Value.of(Object("list", "rows"))
        for target in () if self.inside else collate.objects:
            if target.kind == "function":
                batches.append(self._as_worker(target, [rows], row))
            elif target.kind == "method" and target.owner is not None and target.bases:
                batches.append(self._as_worker(target.bases[0], [Value.of(target.owner), rows], row))
            elif target.kind == "instance" and (method := self.method(target, "__call__")) is not None:
                batches.append(self._as_worker(method, [Value.of(target), rows], row))
        return merge(batches) if batches else NOTHING

    def _as_worker(self, function: Object, args: list[Value], row: Value = NOTHING) -> Value:
        definition = function.definition
        assert definition is not None
        loops, in_step, was = self.loops, self.in_step, self.in_data_set
        before = self.state.copy()
        returned = NOTHING

        def body() -> None:
            nonlocal returned
            for rows in args[-1].objects:
                self.state.put((rows, CONTENT), row, None)
            returned = self.run(function, args, {})
            returned = Value.made(OWNED if self.owned(returned) else 0, returned.sites, returned.items)
            self.sink(self.use(returned), definition, "weights")

        self.in_data_set = True
        try:
            self.over_shards(definition, body)
        finally:
            self.in_data_set, self.loops, self.in_step = was, loops, in_step
            self.state = before
        return returned

    def _module(self, name: str, node: ast.AST, given: list[Value]) -> Value:
        made = self.make(node, "module", name.rpartition(".")[2])
        made.is_prepared = made.is_kept = False
        children = {o for value in given for o in self.all_objects(value) if o.kind in ("module", "instance", "opaque")}
        made.children = children
        made.has_statistics = bool(names.STATISTICS.search(name)) or any(child.has_statistics for child in children)
        is_trained = isinstance(node, ast.Call) and any(k.arg in ("weights", "pretrained") for k in node.keywords)
        made.is_early = not self.has_joined and not self.is_seeded and not is_trained
        made.is_evaluating = False
        used = self.used(given)
        self.state.put((made, CONTENT), Value.made(0, used.sites), None)
        return Value.of(made)

    def all_objects(self, value: Value, depth: int = 3) -> set[Object]:
        """The objects in a value, and in its content."""
        found = set(value.objects)
        for item in value.items or ():
            found |= self.all_objects(item, depth - 1) if depth else set()
        for target in list(found):
            if target.kind in ("list", "dict") and depth:
                cell = self.state.get((target, CONTENT))
                found |= self.all_objects(cell.value, depth - 1) if cell is not None else set()
        return found

    def _copy(self, name: str, node: ast.AST, args: list[Value]) -> Value:
        original = args[0] if args else NOTHING
        kinds = {o.kind for o in original.objects}
        if (
            not names.AVERAGES.match(name)
            and (kinds or original.items is not None or original.flags & (DATA | OWNED))
            and not kinds & {"module", "opaque"}
            and not any(self.is_module(o) for o in original.objects)
        ):
            used = self.use(original)
            return Value.made(used.flags, used.sites, original.items).own()
        argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if argument is not None and "state_dict" in ast.unparse(argument):
            used = self.use(original)
            made = self.make(node, "dict")
            self.state.put((made, CONTENT), Value.made(used.flags, used.sites), None)
            return Value(frozenset((made,)), used.flags, used.sites)
        made = self.make(node, "module", "copy")
        made.is_copy = True
        made.has_statistics = any(o.has_statistics for o in original.objects)
        return Value.of(made)

    def _container(self, kind: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        made = self.make(node, kind)
        content = NOTHING
        if args and self.shards in args[0].objects:
            return args[0]
        if args and isinstance(node, ast.Call) and kind in ("list", "set", "deque"):
            content, _ = self.iterate(node.args[0])
        elif args and isinstance(node, ast.Call) and source.dotted(node.func).endswith("defaultdict"):
            content = self._made_by_default(node.args[0], args[0])
        elif args:
            content = merge([self.content(o) for value in args for o in value.objects] or [NOTHING])
        self.state.put((made, CONTENT), content, None)
        return Value.of(made)

    def _made_by_default(self, node: ast.AST, factory: Value) -> Value:
        name = source.dotted(node)
        if name in names.CONTAINERS:
            return Value.of(self.make(node, names.CONTAINERS[name]))
        return merge([self.call_of(target, node, NOTHING, [], {}) for target in factory.objects] or [NOTHING])

    @override
    def builtin(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        if name in names.CONTAINERS:
            return self._container(names.CONTAINERS[name], node, args, keywords)
        if name == "len":
            if args and self.shards in args[0].objects:
                return Value.made(NUMBER, self.place(node, "len(shards)", "shard number"))
            flags = SIZE if any(value.flags & DATA for value in args) else 0
            used = self.used(args)
            return Value.made(flags | (used.flags & RANKED), used.sites)
        if name == "next" and args:
            at = node.args[0] if isinstance(node, ast.Call) else node
            if isinstance(at, ast.Call) and source.dotted(at.func) == "iter" and at.args:
                return self.iterate(at.args[0])[0]
            shown = source.shown(at)
            found = []
            for target in args[0].objects:
                if target.kind == "iterator":
                    found.append(self.next(target, node, shown))
            return merge(found)._replace(sites=merge(found).sites | args[0].sites) if found else self.use(args[0])
        if name == "iter" and args:
            return self.iterator(node, args[0])
        if name in ("getattr", "setattr") and len(args) > 1 and isinstance(node, ast.Call):
            by_name = self._by_name(name, node, args)
            if by_name is not None:
                return by_name
        used = self.used((*args, *keywords.values()))
        for value in (*args, *keywords.values()):
            self.call_back(value)
        if name in ("print", "str", "repr", "format"):
            used = mix([self.written(value) for value in (*args, *keywords.values())])
        if name == "open":
            return Value.made(0, used.sites)
        if name in ("print", "input", "exit", "quit", "exec"):
            if isinstance(node, ast.Call):
                self.unknown = node
            return used
        if name in ("sorted", "reversed", "map", "filter", "sum", "min", "max", "zip", "enumerate", "tuple"):
            held = (
                [o for value in args for o in self.all_objects(value, 1)] if name in ("reversed", "tuple", "sorted") else []
            )
            objects = frozenset(o for o in held if name != "sorted" or o.kind != "set")
            items = args[0].items if name == "tuple" and args else None
            owned = OWNED if name not in ("map", "sum", "min", "max") and any(map(self.owned, args)) else 0
            return Value(objects, used.flags | owned, used.sites, items)
        if name in ("isinstance", "type", "id", "hasattr", "callable", "range"):
            return Value.made(used.flags & ~DATA, used.sites if name == "range" else frozenset())
        return used

    def _by_name(self, name: str, node: ast.Call, args: list[Value]) -> Value | None:
        """``getattr`` and ``setattr`` of names that are constants of the script. None: the name is
        unknown."""
        found = []
        for attribute in sorted(filter(str.isidentifier, args[1].texts)):
            target = ast.copy_location(ast.Attribute(node.args[0], attribute, ast.Load()), node)
            if name == "setattr":
                self.set_attribute(target, args[2] if len(args) > 2 else NOTHING, own=False)
            found.append(self.attribute(args[0], target))
        return merge((*found, *args[2:])) if found else None

    def iterator(self, node: ast.AST, value: Value) -> Value:
        """``iter(value)``."""
        element, kind = self.element(value, node)
        made = self.make(node, "iterator", "iterator", fresh=False)
        made.is_prepared = kind == BATCHES
        if kind in (SHARDS, EVALUATION):
            return Value.made(DATA)
        lists = [o for o in value.objects if o.kind in ("list", "dict")]
        if not value.objects or lists:
            return Value.made(element.flags, element.sites)
        return Value(frozenset((made,)), 0, value.sites)


def _has_workers(node: ast.AST) -> bool:
    """Whether a loader's samples come from other processes, as copies: that is written in its
    call."""
    workers = [k.value for k in node.keywords if k.arg == "num_workers"] if isinstance(node, ast.Call) else []
    return any(isinstance(number, ast.Constant) and isinstance(number.value, int) and number.value > 0 for number in workers)
