"""What calls do: of the script's own functions, which are run; of lockstep's, PyTorch's and Python's, by name."""

from __future__ import annotations

import ast

from lockstep.reading import names, source
from lockstep.reading.loops import BATCHES, EVALUATION, SHARDS, Loops
from lockstep.reading.state import CONTENT, State, join
from lockstep.reading.values import (
    CLOCK,
    DATA,
    NOTHING,
    NUMBER,
    RANDOM,
    RANKED,
    SIZE,
    Frame,
    Object,
    Value,
    merge,
    mix,
)

DEEPEST = 12
_DRAWN_FROM = {"generator", "rng", "gen"}


class Calls(Loops):
    """Evaluates calls."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[ast.AST] = []
        self.seen: set[int] = set()
        """Functions that were run."""
        self.hooks: list[Object] = []
        self.gradient_hooks: list[Object] = []
        self.hook_runs = False
        self.unknown: ast.Call | None = None
        """The latest call whose effect nothing is known of."""
        self.returned: list[list[tuple[Value, State]]] = []

    def call(self, node: ast.Call) -> Value:
        """A call's value. Its effects happen."""
        if isinstance(node.func, ast.Attribute):
            receiver = self.eval(node.func.value)
            function = self.attribute(receiver, node.func)
        else:
            receiver, function = NOTHING, self.eval(node.func)
        args, keywords = self._arguments(node)
        if isinstance(node.func, ast.Attribute):
            known = self._method(node, node.func, receiver, function, args, keywords)
            if known is not None:
                return known
        found = [self._call_of(target, node, receiver, args, keywords) for target in function.objects]
        if found:
            value = merge(found)
            if not receiver.sites or isinstance(node.func, ast.Name):
                return value
            return value._replace(sites=value.sites | receiver.sites)
        return self._call_unknown(node, receiver, function, args, keywords)

    def _arguments(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for argument in node.args:
            value = self.eval(argument)
            if isinstance(argument, ast.Starred) and value.items is not None:
                args += value.items
            elif isinstance(argument, ast.Starred):
                args.append(
                    merge([value, *(self.content(o) for o in value.objects if o.kind in ("list", "dict"))])._replace(
                        items=None
                    )
                )
            else:
                args.append(value)
        keywords = {keyword.arg or "**": self.eval(keyword.value) for keyword in node.keywords}
        return args, keywords

    def _call_unknown(
        self, node: ast.Call, receiver: Value, function: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _BUILTINS:
            return self._builtin(name, node, args, keywords)
        for value in (*args, *keywords.values()):
            self._call_back(value)
        self.unknown = node
        given = mix([self.use(value) for value in (receiver, *args, *keywords.values())])
        return given._replace(sites=given.sites | function.sites)

    def _call_back(self, value: Value) -> None:
        """A function that is handed to something unknown is called there."""
        for target in value.objects:
            if target.kind in ("function", "method") and target.definition is not None:
                self._call_of(target, target.definition, NOTHING, [], {})

    def _call_of(
        self, target: Object, node: ast.AST, receiver: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if target.kind == "function":
            return self.invoke(target, args, keywords, node)
        if target.kind == "method" and target.owner is not None and target.bases:
            names_ = {source.dotted(d) for d in getattr(target.definition, "decorator_list", [])}
            first = Value(frozenset(target.owner.bases[:1] if "classmethod" in names_ else (target.owner,)))
            return self.invoke(target.bases[0], [first, *args], keywords, node)
        if target.kind == "class":
            return self._instance(target, node, args, keywords)
        if target.kind == "external":
            return self._external(target.name, node, args, keywords)
        if target.kind == "instance":
            return self._call_instance(target, node, args, keywords)
        if target.kind == "file":
            return NOTHING
        if target.kind in ("module", "opaque"):
            return self._call_module(target, node, args, keywords)
        if isinstance(node, ast.Call):
            self.unknown = node
        return mix([self.use(value) for value in (receiver, *args, *keywords.values())])

    # -- functions and classes of the script --------------------------------------------------------------------------------

    def invoke(self, function: Object, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Call a function of the script."""
        definition = function.definition
        if definition is None:
            return mix([self.use(value) for value in (*args, *keywords.values())])
        if source.is_generator(definition) and not self._is_context_manager(definition):
            stream = self.make(node if isinstance(node, ast.Call) else definition, "stream", function.name)
            stream.definition, stream.frame, stream.arguments = definition, function.frame, (args, keywords)
            self.seen.add(id(definition))
            return Value(frozenset((stream,)))
        return self.run(function, args, keywords)

    @staticmethod
    def _is_context_manager(definition: ast.AST) -> bool:
        return any("contextmanager" in source.dotted(d) for d in getattr(definition, "decorator_list", []))

    def run(self, function: Object, args: list[Value], keywords: dict[str, Value]) -> Value:
        """Run a function's body."""
        definition = function.definition
        if definition is None or definition in self.active or len(self.active) > DEEPEST:
            return mix([self.use(value) for value in (*args, *keywords.values())])
        self.seen.add(id(definition))
        parent = function.frame
        made = self.made.get(id(definition) ^ 1)
        if made is None:
            frame = _new_frame(definition, parent)
            made = self.made[id(definition) ^ 1] = Object("frame", "", definition, frame=frame)
        known = made.frame
        assert known is not None
        self.state.forget(known)
        outer, outer_jumps = self.frame, self.jumps
        self.frame, self.jumps = known, []
        self.active.append(definition)
        self.returned.append([])
        control = self.control
        try:
            self._bind_arguments(definition, args, keywords)
            alive = self.block(source.body_of(definition))
        finally:
            ways = self.returned.pop()
            self.active.pop()
            self.frame, self.jumps, self.control = outer, outer_jumps, control
        ends = [state for _, state in ways]
        if alive:
            ends.append(self.state)
        self.state = join(ends) or self.state
        values = [value for value, _ in ways]
        if alive and values:
            values.append(NOTHING)
        return merge(values) if values else NOTHING

    def _bind_arguments(self, definition: ast.AST, args: list[Value], keywords: dict[str, Value]) -> None:
        arguments: ast.arguments = definition.args  # type: ignore[attr-defined]
        names_ = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        bound = dict(zip(names_, args, strict=False))
        rest = args[len(names_) :]
        bound.update(
            {
                name: value
                for name, value in keywords.items()
                if name in names_ or name in [a.arg for a in arguments.kwonlyargs]
            }
        )
        defaults = [*zip(reversed(names_), reversed(arguments.defaults), strict=False)]
        defaults += [(a.arg, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None]
        for name, default in defaults:
            if name not in bound:
                bound[name] = self.eval(default)
        for name in (*names_, *(a.arg for a in arguments.kwonlyargs)):
            self.state.put((self.frame, name), bound.get(name, NOTHING), None)
        if arguments.vararg is not None:
            value = merge(rest) if rest else NOTHING
            self.state.put((self.frame, arguments.vararg.arg), value._replace(items=tuple(rest)), None)
        if arguments.kwarg is not None:
            others = [value for name, value in keywords.items() if name not in bound]
            self.state.put((self.frame, arguments.kwarg.arg), merge(others) if others else NOTHING, None)

    def _instance(self, of_class: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        made = self.make(node, "instance", of_class.name)
        made.bases = [of_class]
        made.is_prepared = made.is_kept = False
        made.buffers = set()
        made.is_early = self._is_early(made)
        init = self.method(made, "__init__")
        if init is not None:
            self.run(init, [Value(frozenset((made,))), *args], keywords)
        elif isinstance(of_class.definition, ast.ClassDef):
            fields = [
                s.target.id
                for s in of_class.definition.body
                if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
            ]
            for name, value in [*zip(fields, args, strict=False), *((n, v) for n, v in keywords.items() if n in fields)]:
                self.state.put((made, name), value, None)
        for value in (*args, *keywords.values()):
            if not self._is_module(made):
                break
            made.children |= {o for o in value.objects if o.kind in ("module", "instance")}
        return Value(frozenset((made,)))

    def written(self, value: Value, depth: int = 3) -> Value:
        """What stands in a text for a value: for an object of the script, what its ``__str__`` makes of it."""
        found = [self.use(value)]
        for item in value.items or ():
            found.append(self.written(item, depth - 1) if depth else NOTHING)
        for target in value.objects:
            if target.kind == "instance":
                method = self.method(target, "__str__") or self.method(target, "__repr__") or self.method(target, "__format__")
                if method is not None:
                    found.append(self.use(self.run(method, [Value(frozenset((target,)))], {})))
            elif target.kind in ("list", "dict") and depth:
                cell = self.state.get((target, CONTENT))
                if cell is not None and any(o.kind == "instance" for o in cell.value.objects):
                    found.append(self.written(cell.value, depth - 1))
        return mix(found)

    def _is_early(self, made: Object) -> bool:
        return not self.has_joined and not self.is_seeded and (made.kind == "module" or self._is_module(made))

    def is_a(self, target: Object, names_: tuple[str, ...]) -> bool:
        """Whether an instance's class inherits, by name, from one of these."""
        waiting, seen = list(target.bases), set[int]()
        while waiting:
            base = waiting.pop()
            if id(base) in seen:
                continue
            seen.add(id(base))
            if base.kind == "external" and base.name.rpartition(".")[2] in names_:
                return True
            waiting += base.bases
        return False

    def _is_module(self, target: Object) -> bool:
        return self.is_a(target, ("Module", "Sequential", "ModuleList", "PreTrainedModel", "LightningModule"))

    def _call_instance(self, target: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        method = self.method(target, "forward") if self._is_module(target) else self.method(target, "__call__")
        if method is None:
            return self._call_module(target, node, args, keywords)
        value = self.run(method, [Value(frozenset((target,))), *args], keywords)
        self._run_hooks(args)
        given = mix([self.use(v) for v in (*args, *keywords.values())])
        return merge((value, Value(frozenset(), given.flags & DATA, given.sites)))

    def _call_module(self, target: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        self._run_hooks(args)
        for value in (*args, *keywords.values()):
            self._call_back(value)
        given = mix([self.use(value) for value in (*args, *keywords.values())])
        if (
            target.has_statistics
            and not target.is_prepared
            and not target.is_evaluating
            and self.inside
            and target.kind == "module"
        ):
            name = self.name_of(target) or target.name or "module"
            write = self.write(node, name, "statistics", Value(frozenset(), DATA), own=True)
            self.state.add((target, "statistics"), NOTHING, write)
        content = self.content(target)
        statistics = self.state.get((target, "statistics"))
        if statistics is not None and target.is_evaluating:
            content = content._replace(sites=content.sites | self.look(statistics).sites)
        if isinstance(node, ast.Call) and not self.inside and target.kind == "opaque":
            self.unknown = node
        return Value(frozenset(), given.flags | (content.flags & DATA), given.sites | content.sites)

    def _run_hooks(self, args: list[Value]) -> None:
        if self.hook_runs:
            return
        self.hook_runs = True
        try:
            given = Value(frozenset(), DATA if self.inside else 0)
            for hook in self.hooks:
                self._call_of(hook, hook.definition or ast.Pass(), NOTHING, [NOTHING, given, given], {})
        finally:
            self.hook_runs = False

    # -- methods ------------------------------------------------------------------------------------------------------------

    def _method(
        self,
        node: ast.Call,
        func: ast.Attribute,
        receiver: Value,
        function: Value,
        args: list[Value],
        keywords: dict[str, Value],
    ) -> Value | None:
        """A method that is known by its name; None: it is not."""
        name = func.attr
        given = [*args, *keywords.values()]
        kinds = {o.kind for o in receiver.objects}
        if "team" in kinds:
            return self._of_team(name, node, args, keywords)
        if name == "backward" and args and not kinds:
            return self._of_team(name, node, args, keywords)
        if kinds & {"batch", "evaluation"} or (name == "add" and not kinds and not args and keywords and self.inside):
            self._of_batch(name, node, args, keywords)
            return NOTHING
        if any(o.kind in ("method", "function", "class") for o in function.objects):
            return None
        if "external" in kinds or "file" in kinds:
            return None
        shown = source.shown(func.value)
        if name == "backward" and self.inside:
            self.find("LS301", node, shown if isinstance(func.value, ast.Name) else "loss")
            return NOTHING
        if self.inside and name in ("step", "zero_grad") and ("optimizer" in kinds or _is_like_an_optimizer(shown)):
            self.find("LS302", node, f"{shown}.{name}")
            return NOTHING
        if name in names.HOOKS or name in names.GRADIENT_HOOKS:
            for value in given:
                functions = [o for o in value.objects if o.kind in ("function", "method")]
                (self.hooks if name in names.HOOKS else self.gradient_hooks).extend(
                    o for o in functions if o not in self.hooks
                )
            return NOTHING
        if name == "register_buffer":
            for target in receiver.objects:
                if node.args and isinstance(node.args[0], ast.Constant):
                    buffer = self.make(node, "tensor", str(node.args[0].value))
                    buffer.is_buffer = True
                    target.buffers.add(buffer.name)
                    target.children.add(buffer)
                    self.state.put((target, buffer.name), Value(frozenset((buffer,))), None)
            return NOTHING
        if not receiver.objects:
            return self._of_unknown(name, node, func, receiver, given)
        results = [self._of_object(target, name, node, func, args, keywords) for target in receiver.objects]
        if any(result is None for result in results):
            return None
        value = merge([result for result in results if result is not None])
        return value._replace(sites=value.sites | receiver.sites)

    def _of_unknown(
        self, name: str, node: ast.Call, func: ast.Attribute, receiver: Value, given: list[Value]
    ) -> Value | None:
        used = mix([self.use(value) for value in given])
        if names.is_in_place(name) or name in names.APPENDING:
            if not (receiver.flags & DATA and names.is_in_place(name)):  # else a result of this shard's own
                self.change_root(func.value, used, own=name not in names.EMPTYING)
            return Value(frozenset(), receiver.flags | used.flags, receiver.sites | used.sites)
        if name in ("size", "numel", "dim", "__len__") and receiver.flags & DATA:
            return Value(frozenset(), SIZE)
        return None

    def _of_object(
        self, target: Object, name: str, node: ast.Call, func: ast.Attribute, args: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        given = [*args, *keywords.values()]
        used = mix([self.use(value) for value in given])
        raw = merge(given) if given else NOTHING
        shown = source.shown(func.value)
        content = self.content(target)
        if target.kind == "clock":
            return Value(frozenset(), CLOCK)
        if target.kind == "draws":
            return self._draw(target, name, node, shown, used)
        if target.kind in ("per shard", "kept state", "shards"):
            return NOTHING
        if target.kind in ("list", "dict", "set", "deque", "queue"):
            return self._of_container(target, name, node, shown, raw, used, content)
        if target.kind == "iterator" and name in ("next", "__next__"):
            return self._next(target, node, shown)
        if target.kind in ("module", "tensor", "opaque", "instance", "loader"):
            if name in ("eval", "train"):
                target.is_evaluating = name == "eval" or (
                    bool(node.args) and isinstance(node.args[0], ast.Constant) and not node.args[0].value
                )
                return Value(frozenset((target,)))
            through_data = source.goes_through_data(func.value)
            if names.is_in_place(name) or name in ("load_state_dict", "update_parameters"):
                if through_data and self.inside and self.is_weights(target):
                    self.find("LS108", node, source.shown(func.value))
                    return Value(frozenset((target,)))
                if name == "load_state_dict":
                    target.is_early = False
                if target.is_prepared and not self.inside:
                    self.sink(used, node, "answer")
                if name in names.EMPTYING:
                    self.replace(target, node, shown, raw if target.kind != "module" else used)
                else:
                    self.change(target, node, shown, "change", used)
                return Value(frozenset((target,)), 0, self.content(target).sites)
            if name in names.SAME_OBJECT:
                return Value(frozenset((target,)), used.flags, content.sites | used.sites)
            if name in ("clone", "item", "tolist", "numpy", "mean", "sum", "norm", "float", "long", "int"):
                return Value(frozenset(), content.flags | used.flags, content.sites | used.sites)
            if target.kind in ("opaque",) and not target.is_prepared:
                return self._of_opaque(target, name, node, shown, used, content)
            if target.kind == "instance" and self.method(target, name) is None:
                self.unknown = node
                return Value(frozenset((target,)) if name in names.SAME_OBJECT else frozenset(), used.flags, used.sites)
            self.unknown = node
            return Value(frozenset(), content.flags | used.flags, content.sites | used.sites)
        if target.kind == "optimizer":
            for value in given:
                self._call_back(value)
            if not self.inside:
                self.sink(used, node, "answer")
            return NOTHING
        return None

    def _of_container(
        self, target: Object, name: str, node: ast.Call, shown: str, raw: Value, used: Value, content: Value
    ) -> Value:
        if name in names.APPENDING or name in ("add", "update", "setdefault", "subtract"):
            self.change(target, node, shown, "append" if name in names.APPENDING else "change", _stored(raw, used))
            return Value(content.objects, content.flags, content.sites) if name == "setdefault" else NOTHING
        if name == "clear":
            self.state.put((target, CONTENT), NOTHING, None)
            return NOTHING
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
                self.change(target, node, shown, "change", Value(frozenset(), content.flags))
            if name == "get" and node.args and isinstance(node.args[0], ast.Constant):
                known = self.field(target, f"[{node.args[0].value!r}]")
                if known is not None:
                    return known
            return content
        if name in ("copy", "items", "values", "keys", "most_common", "elements", "index", "count", "__contains__"):
            return Value(
                frozenset((target,)) if name in ("items", "values", "keys", "copy") else frozenset(),
                content.flags,
                content.sites,
            )
        if names.is_in_place(name):
            self.change(target, node, shown, "change", used)
            return Value(frozenset((target,)))
        return Value(frozenset(), content.flags | used.flags, content.sites | used.sites)

    def _of_opaque(self, target: Object, name: str, node: ast.Call, shown: str, used: Value, content: Value) -> Value | None:
        library = target.name
        if names.SYNCHRONISED.match(library) or names.is_harmless(f"{shown}.{name}"):
            return Value(frozenset(), used.flags)
        if name in names.CHANGING and used.flags & DATA and self.inside:
            self.change(target, node, shown, "change", used, doubtful=True)
            return Value(frozenset(), content.flags | used.flags, content.sites | used.sites)
        self.unknown = node
        return Value(frozenset(), content.flags | used.flags, content.sites | used.sites)

    def _draw(self, target: Object, name: str, node: ast.Call, shown: str, used: Value) -> Value:
        if name in ("manual_seed", "seed", "set_state"):
            self.state.put((target, CONTENT), NOTHING, None)
            return Value(frozenset((target,)))
        if name in ("get_state", "initial_seed", "getstate"):
            return NOTHING
        return self._drawn(target, node, shown)

    def _drawn(self, target: Object, node: ast.AST, shown: str) -> Value:
        before = self.content(target)
        self.change(target, node, shown, "draw", Value(frozenset(), RANDOM), own=True)
        return Value(frozenset(), RANDOM, before.sites)

    def _next(self, target: Object, node: ast.AST, shown: str) -> Value:
        if target.is_prepared:
            return Value(frozenset((self.batch,)))
        before = self.content(target)
        self.change(target, node, shown, "next", Value(frozenset(), DATA if self.inside else 0), own=True)
        return Value(frozenset(), DATA if self.inside else 0, before.sites)

    # -- lockstep -----------------------------------------------------------------------------------------------------------

    def _of_team(self, name: str, node: ast.Call, args: list[Value], keywords: dict[str, Value]) -> Value:
        given = [*args, *keywords.values()]
        used = mix([self.use(value) for value in given])
        if name == "prepare":
            return self._prepare(node, args)
        if name == "register":
            return self._register(node, args)
        if name == "state":
            kept = self.make(node, "kept state", "state", fresh=False)
            kept.is_kept = True
            return Value(frozenset((kept,)))
        if name == "per_shard":
            return Value(frozenset((self.make(node, "per shard", "state", fresh=False),)))
        if name == "evaluate":
            made = self.make(node, "evaluation", "evaluation", fresh=False)
            if not self.inside:
                self.sink(
                    used._replace(sites=frozenset(s for s in used.sites if s.how in ("average", "statistics"))),
                    node,
                    "answer",
                )
            return Value(frozenset((made,)))
        if name == "epochs":
            return NOTHING
        if name == "unwrap":
            return args[0] if args else NOTHING
        if name == "backward":
            for hook in self.gradient_hooks:
                self._call_of(hook, hook.definition or ast.Pass(), NOTHING, [Value(frozenset(), DATA)], {})
            self.sink(used, node, "weights")
            return NOTHING
        if name in ("any", "all", "best"):
            if not self.inside:
                self.sink(used, node, "decision")
            return NOTHING
        if name in ("log", "print"):
            if not self.inside:
                self.sink(used, node, "print")
            return NOTHING
        if name in ("join", "barrier", "autocast", "main_first", "close"):
            return NOTHING
        if name == "clip_grad_norm_":
            self.sink(used, node, "answer")
            return NOTHING
        flags = RANKED if not names.GATHERING.search(name) or "reduce" not in name else 0
        return Value(frozenset(), flags)

    def _of_batch(self, name: str, node: ast.Call, args: list[Value], keywords: dict[str, Value]) -> None:
        for value in (*args, *keywords.values()):
            used = self.use(value)
            used = used._replace(sites=frozenset(s for s in used.sites if s.inside))
            self.sink(used, node, "answer")

    def _prepare(self, node: ast.Call, args: list[Value]) -> Value:
        prepared = []
        for number, value in enumerate(args):
            if not value.objects:
                at = node.args[number] if number < len(node.args) else node
                made = self.made.get(id(at) ^ 2)
                if made is None:
                    made = self.made[id(at) ^ 2] = Object("opaque", "", at)
                value = Value(frozenset((made,)), value.flags, value.sites, value.items)
            for target in value.objects:
                if target.is_early and self.has_joined and target.kind in ("module", "instance"):
                    where = target.node if target.node is not None else node
                    self.find("LS304", where, (self.name_of(target) or target.name or "module"))
                self._mark_prepared(target)
            prepared.append(value)
        return prepared[0] if len(prepared) == 1 else Value(frozenset(), 0, frozenset(), tuple(prepared))

    def _mark_prepared(self, target: Object, depth: int = 5) -> None:
        target.is_prepared = target.is_kept = True
        inner = self.state.get((target, CONTENT)) if target.kind in ("module", "opaque", "list", "optimizer") else None
        for child in (*target.children, *(inner.value.objects if inner is not None else ())):
            if child.kind == "tensor" and not child.is_buffer:
                continue
            if (
                depth
                and not child.is_prepared
                and child.kind in ("module", "instance", "opaque", "list", "optimizer", "tensor")
            ):
                self._mark_prepared(child, depth - 1)

    def _register(self, node: ast.Call, args: list[Value]) -> Value:
        if len(args) < 2:
            return NOTHING
        value = args[1]
        if not value.objects:
            made = self.make(node, "tensor", "registered", fresh=False)
            value = value._replace(objects=frozenset((made,)))
            if isinstance(node.args[1], ast.Name):
                self.state.put(self.key_of(node.args[1].id), value, None)
        for target in value.objects:
            self._keep(target)
        return value

    def _keep(self, target: Object, depth: int = 3) -> None:
        target.is_kept = True
        inner = self.state.get((target, CONTENT))
        for child in inner.value.objects if inner is not None else ():
            if depth and not child.is_kept:
                self._keep(child, depth - 1)

    # -- libraries ----------------------------------------------------------------------------------------------------------

    def _external(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        given = [*args, *keywords.values()]
        last = name.rpartition(".")[2]
        if name in ("lockstep.join", "lockstep.joining.join.join"):
            self.has_joined = True
            return Value(frozenset((self.team,)))
        if names.CLOCKS.match(name):
            return Value(frozenset((self.make(node, "clock"),)) if last == "Event" else frozenset(), CLOCK)
        if name in names.CONTAINERS:
            return self._container(names.CONTAINERS[name], node, args, keywords)
        if name in ("torch.manual_seed", "lightning.seed_everything", "transformers.set_seed"):
            self.is_seeded = True
            return NOTHING
        if name in names.GENERATORS:
            return Value(frozenset((self.make(node, "draws", last),)))
        for keyword in ("generator", "rng"):
            for target in keywords.get(keyword, NOTHING).objects:
                if target.kind == "draws" and names.RANDOM_CALL.search(name):
                    return self._drawn(target, node, (self.name_of(target) or target.name or "module"))
        if name in names.LOADERS:
            return self._loader(node, args, keywords)
        if names.OPTIMIZERS.match(name):
            self.sink(mix([self.use(v) for v in given]), node, "weights")
            made = self.make(node, "optimizer", last)
            return Value(frozenset((made,)))
        if name in names.COPIES:
            return self._copy(name, node, args)
        if names.MODULES.match(name):
            return self._module(name, node, given)
        if name == "torch.utils.data.get_worker_info":
            if self.in_data_set:
                return Value(
                    frozenset(), NUMBER, frozenset((self.site(node, "get_worker_info()", "worker")._replace(inside=True),))
                )
            return NOTHING
        used = mix([self.use(value) for value in given])
        if names.RANDOM_CALL.search(name):
            flags = used.flags | RANDOM
            if names.TENSORS.match(name):
                return Value(frozenset((self.make(node, "tensor"),)), flags, used.sites)
            return Value(frozenset(), flags, used.sites)
        if names.TENSORS.match(name):
            made = self.make(node, "tensor")
            self.state.put((made, CONTENT), Value(frozenset(), used.flags, used.sites), None)
            return Value(frozenset((made,)), used.flags & ~SIZE)
        if name.startswith("torch.distributed.") and last.startswith(("all_reduce", "broadcast", "all_gather", "reduce")):
            for target in (o for value in given for o in value.objects):
                self.state.put((target, CONTENT), NOTHING, None)
            for argument in node.args if isinstance(node, ast.Call) else ():
                if isinstance(argument, ast.Name):
                    self.state.put(self.key_of(argument.id), NOTHING, None)
            return NOTHING
        if last in ("iter",) or name in _BUILTINS:
            return self._builtin(last, node, args, keywords)
        if name.startswith(("torch.nn.init.", "torch.cuda.", "os.", "pathlib.", "torch.backends")):
            return Value(frozenset(), used.flags, used.sites)
        for value in given:
            self._call_back(value)
        if isinstance(node, ast.Call):
            self.unknown = node
            if last[:1].isupper() or (not self.inside and names.MAKES.match(name)):
                made = self.make(node, "opaque", name)
                if not self.inside:
                    made.children |= {
                        o for value in given for o in value.objects if o.kind in ("module", "instance", "opaque")
                    }
                return Value(frozenset((made,)), used.flags, used.sites)
        return Value(frozenset(), used.flags, used.sites)

    def _loader(self, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        made = self.make(node, "loader", "DataLoader", fresh=False)
        made.is_prepared = made.is_kept = False
        data = args[0] if args else keywords.get("dataset", NOTHING)
        self.read_data_set(data, keywords.get("collate_fn", NOTHING))
        return Value(frozenset((made,)))

    def change_root(self, node: ast.AST, value: Value, *, own: bool) -> None:
        """See Statements."""
        raise NotImplementedError

    def read_data_set(self, data: Value, collate: Value) -> None:
        """Run what loader workers run: each has objects of its own, as each process has."""
        inside = self.inside
        if inside:
            return
        for target in data.objects:
            method = self.method(target, "__getitem__") if target.kind == "instance" else None
            if method is not None:
                self._as_worker(method, [Value(frozenset((target,))), NOTHING])
        for target in collate.objects:
            if target.kind == "function":
                self._as_worker(target, [NOTHING])
            elif target.kind == "instance" and (method := self.method(target, "__call__")) is not None:
                self._as_worker(method, [Value(frozenset((target,))), NOTHING])

    def _as_worker(self, function: Object, args: list[Value]) -> None:
        definition = function.definition
        assert definition is not None
        loops, in_step, was = self.loops, self.in_step, self.in_data_set
        before = self.state.copy()

        def body() -> None:
            value = self.run(function, args, {})
            self.sink(self.use(value), definition, "answer")

        self.in_data_set = True
        try:
            self.over_shards(definition, body)
        finally:
            self.in_data_set, self.loops, self.in_step = was, loops, in_step
            self.state = before

    def _module(self, name: str, node: ast.AST, given: list[Value]) -> Value:
        made = self.make(node, "module", name.rpartition(".")[2])
        made.is_prepared = made.is_kept = False
        children = {o for value in given for o in self._all_objects(value) if o.kind in ("module", "instance", "opaque")}
        made.children = children
        made.has_statistics = bool(names.STATISTICS.search(name)) or any(child.has_statistics for child in children)
        made.is_early = not self.has_joined and not self.is_seeded
        made.is_evaluating = False
        return Value(frozenset((made,)))

    def _all_objects(self, value: Value, depth: int = 3) -> set[Object]:
        found = set(value.objects)
        for item in value.items or ():
            found |= self._all_objects(item, depth - 1) if depth else set()
        for target in list(found):
            if target.kind in ("list", "dict") and depth:
                cell = self.state.get((target, CONTENT))
                found |= self._all_objects(cell.value, depth - 1) if cell is not None else set()
        return found

    def _copy(self, name: str, node: ast.AST, args: list[Value]) -> Value:
        original = args[0] if args else NOTHING
        kinds = {o.kind for o in original.objects}
        if (
            name not in names.AVERAGES
            and kinds
            and not kinds & {"module", "opaque"}
            and not any(self._is_module(o) for o in original.objects)
        ):
            used = self.use(original)
            return Value(frozenset(), used.flags, used.sites, original.items)
        argument = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if argument is not None and "state_dict" in ast.unparse(argument):
            used = self.use(original)
            return Value(frozenset(), used.flags, used.sites)
        if not kinds and name not in names.AVERAGES and (self.inside or not isinstance(argument, (ast.Name, ast.Attribute))):
            return original
        made = self.make(node, "module", "copy", fresh=not self.loops)
        made.is_copy = True
        made.has_statistics = any(o.has_statistics for o in original.objects)
        return Value(frozenset((made,)))

    def _container(self, kind: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        made = self.make(node, kind)
        content = NOTHING
        if args and isinstance(node, ast.Call) and kind in ("list", "set", "deque"):
            element, over = self.iterate(node.args[0])
            content = element
            if over == SHARDS:
                content = element._replace(flags=element.flags | DATA)
            elif over in (BATCHES, EVALUATION):
                content = element
        elif args and isinstance(node, ast.Call) and source.dotted(node.func).endswith("defaultdict"):
            content = self._made_by_default(node.args[0], args[0])
        elif args:
            content = merge([self.content(o) for value in args for o in value.objects] or [NOTHING])
        for name, value in keywords.items():
            self.state.put((made, f"[{name!r}]"), value, None)
            content = merge((content, value))
        if kind == "set":
            self.note_set(made, node)
        self.state.put((made, CONTENT), content, None)
        return Value(frozenset((made,)))

    def _made_by_default(self, node: ast.AST, factory: Value) -> Value:
        name = source.dotted(node)
        if name in names.CONTAINERS:
            return Value(frozenset((self.make(node, names.CONTAINERS[name]),)))
        return merge([self._call_of(target, node, NOTHING, [], {}) for target in factory.objects] or [NOTHING])

    # -- Python -------------------------------------------------------------------------------------------------------------

    def _builtin(self, name: str, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        if name in names.CONTAINERS:
            return self._container(names.CONTAINERS[name], node, args, keywords)
        if name == "len":
            flags = SIZE if any(value.flags & DATA for value in args) else 0
            used = mix([self.use(value) for value in args])
            return Value(frozenset(), flags | (used.flags & RANKED), used.sites)
        if name == "next" and args:
            shown = source.shown(node.args[0]) if isinstance(node, ast.Call) else "next"
            found = []
            for target in args[0].objects:
                if target.kind == "iterator":
                    found.append(self._next(target, node, shown))
                elif target.kind == "stream" and target.definition is not None:
                    got: list[Value] = []
                    self.run_generator(target, got.append)
                    found += got
            return merge(found)._replace(sites=merge(found).sites | args[0].sites) if found else self.use(args[0])
        if name == "iter" and args:
            return self._iterator(node, args[0])
        if (
            name in ("setattr", "getattr")
            and len(args) > 1
            and isinstance(node, ast.Call)
            and isinstance(node.args[1], ast.Constant)
        ):
            attribute = ast.copy_location(ast.Attribute(node.args[0], str(node.args[1].value), ast.Load()), node)
            if name == "getattr":
                return self.attribute(args[0], attribute)
            self.set_attribute(attribute, args[2] if len(args) > 2 else NOTHING, own=False)
            return NOTHING
        if name in ("super",):
            return self._super()
        used = mix([self.use(value) for value in (*args, *keywords.values())])
        for value in (*args, *keywords.values()):
            self._call_back(value)
        if name in ("print", "str", "repr", "format"):
            used = mix([self.written(value) for value in (*args, *keywords.values())])
        if name in ("print", "input", "open", "exit", "quit", "exec"):
            if isinstance(node, ast.Call):
                self.unknown = node
            return used
        if name in ("sorted", "reversed", "map", "filter", "sum", "min", "max", "zip", "enumerate", "tuple"):
            held = (
                [o for value in args for o in self._all_objects(value, 1)] if name in ("reversed", "tuple", "sorted") else []
            )
            objects = frozenset(o for o in held if name != "sorted" or o.kind != "set")
            items = args[0].items if name == "tuple" and args else None
            return Value(objects, used.flags, used.sites, items)
        if name in ("isinstance", "type", "id", "hasattr", "callable", "range"):
            return Value(frozenset(), used.flags & ~DATA, used.sites if name == "range" else frozenset())
        return used

    def _super(self) -> Value:
        for frame in (self.frame, self.frame.parent):
            if frame is None or frame.definition is None:
                continue
            arguments = getattr(frame.definition, "args", None)
            if arguments is not None and arguments.args:
                cell = self.state.get((frame, arguments.args[0].arg))
                for target in cell.value.objects if cell is not None else ():
                    bases = [b for o in target.bases for b in o.bases if b.kind == "class"]
                    if bases:
                        proxy = self.made.get(id(target) ^ 3)
                        if proxy is None:
                            proxy = self.made[id(target) ^ 3] = Object("super", "super")
                        proxy.bases, proxy.owner = bases[:1], target
                        return Value(frozenset((proxy,)))
        return NOTHING

    def _iterator(self, node: ast.AST, value: Value) -> Value:
        element, kind = self.element(value, node)
        made = self.make(node, "iterator", "iterator", fresh=False)
        made.is_prepared = kind == BATCHES
        if kind in (SHARDS, EVALUATION):
            return Value(frozenset(), DATA)
        lists = [o for o in value.objects if o.kind in ("list", "dict")]
        if not value.objects or lists:
            return Value(frozenset(), element.flags, element.sites)
        return Value(frozenset((made,)), 0, value.sites)


_BUILTINS = {
    *(
        "list",
        "dict",
        "set",
        "frozenset",
        "bytearray",
        "len",
        "next",
        "iter",
        "setattr",
        "getattr",
        "super",
        "print",
        "input",
        "open",
    ),
    *(
        "sorted",
        "reversed",
        "map",
        "filter",
        "sum",
        "min",
        "max",
        "zip",
        "enumerate",
        "tuple",
        "isinstance",
        "type",
        "id",
        "hasattr",
    ),
    *(
        "callable",
        "range",
        "int",
        "float",
        "str",
        "bool",
        "abs",
        "round",
        "any",
        "all",
        "exit",
        "quit",
        "exec",
        "divmod",
        "pow",
        "repr",
    ),
}


def _stored(raw: Value, used: Value) -> Value:
    return Value(raw.objects, raw.flags | used.flags, raw.sites | used.sites)


def _is_like_an_optimizer(name: str) -> bool:
    last = name.rpartition(".")[2].lower()
    return "opt" in last or last in ("scheduler", "schedule", "lr_scheduler", "sched", "scaler", "warmup")


def _new_frame(definition: ast.AST, parent: Frame | None) -> Frame:
    outer, global_ = set[str](), set[str]()
    for part in source.own_nodes(source.body_of(definition)):
        if isinstance(part, ast.Nonlocal):
            outer.update(part.names)
        elif isinstance(part, ast.Global):
            global_.update(part.names)
    return Frame(parent, parent.path if parent is not None else "", definition, frozenset(outer), frozenset(global_))
