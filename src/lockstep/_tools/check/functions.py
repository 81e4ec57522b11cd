"""Calls of functions, classes and objects that the script defines."""

from __future__ import annotations

import ast

from typing_extensions import override

from lockstep._tools.check import names, source
from lockstep._tools.check.loops import Loops
from lockstep._tools.check.state import State, join
from lockstep._tools.check.values import DATA, NOTHING, OWNED, RANDOM, Frame, Object, Site, Value, merge, mix

DEEPEST = 12
"""The depth of nested calls that are followed."""
_OF_OBJECTS = ("attribute", "add", "append", "change", "average")
"""The kinds of changes that a finding attributes to the whole object, where one of its methods
makes them."""


class Functions(Loops):
    """Calls functions and classes of the script, which are run."""

    def __init__(self) -> None:
        super().__init__()
        self.active: list[ast.AST] = []
        self.seen: set[int] = set()
        """The identities of the functions that were run."""
        self.defaults: dict[int, Value] = {}
        """The values of default arguments, which are made where the function is defined."""
        self.gradient_hooks: list[Object] = []
        self.unknown: ast.Call | None = None
        """The latest call whose effect nothing is known of."""
        self.returned: list[list[tuple[Value, State]]] = []

    @override
    def call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Attribute):
            receiver = self.eval(node.func.value)
            function = self.attribute(receiver, node.func)
        else:
            receiver, function = NOTHING, self.eval(node.func)
        args, keywords = self._arguments(node)
        if isinstance(node.func, ast.Attribute):
            known = self.of_method(node, receiver, function, args, keywords)
            if known is not None:
                return known
        self.calls.append((node, self.frame, receiver.objects | function.objects | _owners(function)))
        try:
            found = [self.call_of(target, node, receiver, args, keywords) for target in function.objects]
        finally:
            self.calls.pop()
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
        if name in names.BUILTINS:
            return self.builtin(name, node, args, keywords)
        for value in (*args, *keywords.values()):
            self.call_back(value)
        self.unknown = node
        given = self.used((receiver, *args, *keywords.values()))
        shares = isinstance(node.func, ast.Attribute) and node.func.attr in names.SAME_OBJECT | names.PARTS
        owned = receiver.flags & OWNED if shares else 0
        return given._replace(sites=given.sites | function.sites, flags=given.flags | owned)

    def call_back(self, value: Value) -> Value:
        """A function that is handed to something unknown is called there."""
        found = [
            self.call_of(target, target.definition, NOTHING, [], {})
            for target in value.objects
            if target.kind in ("function", "method") and target.definition is not None
        ]
        return merge(found) if found else NOTHING

    def call_of(
        self, target: Object, node: ast.AST, receiver: Value, args: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Call one of the objects that a function may be."""
        if target.kind == "function":
            return self.invoke(target, args, keywords, node)
        if target.kind == "method" and target.owner is not None and target.bases:
            names_ = {source.dotted(d) for d in getattr(target.definition, "decorator_list", [])}
            is_of_class = "classmethod" in names_ and target.owner.kind != "class"
            first = Value(frozenset(target.owner.bases[:1] if is_of_class else (target.owner,)))
            return self.invoke(target.bases[0], [first, *args], keywords, node)
        if target.kind == "class":
            return self.instance(target, node, args, keywords)
        if target.kind == "external":
            return self.of_library(target.name, node, args, keywords)
        if target.kind == "instance":
            return self._call_instance(target, node, args, keywords)
        if target.kind in ("module", "opaque"):
            return self._call_module(target, node, args, keywords)
        if isinstance(node, ast.Call):
            self.unknown = node
        return self.used((receiver, *args, *keywords.values()))

    @override
    def invoke(self, function: Object, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        definition = function.definition
        if definition is None:
            return self.used((*args, *keywords.values()))
        if source.is_generator(definition) and not self._is_context_manager(definition):
            stream = self.make(node if isinstance(node, ast.Call) else definition, "stream", function.name)
            stream.definition, stream.frame, stream.arguments = definition, function.frame, (args, keywords)
            self.seen.add(id(definition))
            return Value.of(stream)
        value = self.run(function, args, keywords)
        is_drawn = value.flags & RANDOM and not any(given.flags & RANDOM for given in (*args, *keywords.values()))
        return self._cached(function, definition, value) if is_drawn and source.is_cached(definition) else value

    def _cached(self, function: Object, definition: ast.AST, value: Value) -> Value:
        """What a function with a cache has drawn: by whichever call was the first of this
        process."""
        known = self.state.get((function, "cache"))
        if known is not None and not known.writes:
            return known.value  # filled before the loop
        self.state.add((function, "cache"), value, self.write(definition, function.name, "cache", value))
        return value if known is None else merge((value, self.look(known)))

    @staticmethod
    def _is_context_manager(definition: ast.AST) -> bool:
        return any("contextmanager" in source.dotted(d) for d in getattr(definition, "decorator_list", []))

    @override
    def run(self, function: Object, args: list[Value], keywords: dict[str, Value]) -> Value:
        definition = function.definition
        if definition is None or definition in self.active or len(self.active) > DEEPEST:
            return self.used((*args, *keywords.values()))
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
        control = self.control, self.control_flags
        try:
            self._bind_arguments(definition, args, keywords)
            alive = self.block(source.body_of(definition))
        finally:
            ways = self.returned.pop()
            self.active.pop()
            self.frame, self.jumps, (self.control, self.control_flags) = outer, outer_jumps, control
        ends = [state for _, state in ways]
        if alive:
            ends.append(self.state)
        self.state = join(ends) or self.state
        values = [value for value, _ in ways]
        return merge(values)

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
                bound[name] = self.defaults.get(id(default)) or self.eval(default)
        for name in (*names_, *(a.arg for a in arguments.kwonlyargs)):
            self.state.put((self.frame, name), bound.get(name, NOTHING), None)
        if arguments.vararg is not None:
            value = merge(rest) if rest else NOTHING
            self.state.put((self.frame, arguments.vararg.arg), value._replace(items=tuple(rest)), None)
        if arguments.kwarg is not None:
            others = [value for name, value in keywords.items() if name not in bound]
            self.state.put((self.frame, arguments.kwarg.arg), merge(others) if others else NOTHING, None)

    def instance(self, of_class: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        """An instance of a class of the script, made here."""
        made = self.make(node, "instance", of_class.name)
        made.bases = [of_class]
        made.is_prepared = made.is_kept = False
        made.buffers = set()
        made.is_early = self.is_early(made)
        init = self.method(made, "__init__")
        if init is not None:
            self.begun.append(made)
            self.run(init, [Value.of(made), *args], keywords)
            self.begun.remove(made)
        return Value.of(made)

    @override
    def in_state(self, target: Object) -> frozenset[str] | None:
        methods = [self.method(target, name) for name in ("state_dict", "load_state_dict")]
        definitions = [method.definition for method in methods if method is not None and method.definition is not None]
        if target.kind != "instance" or len(definitions) < len(methods):
            return None
        found = [source.own_attributes(definition) for definition in definitions]
        return frozenset[str]().union(*(part for part in found if part)) if None not in found else None

    @override
    def from_loop(self, site: Site) -> Site:
        own = self.state.get((self.frame, "self"))
        if site.how == "buffer" and not self.in_data_set:
            return self._module_of(site)
        if own is None or self.in_data_set or not site.name.startswith("self.") or site.how not in _OF_OBJECTS:
            return site
        for call, frame, called in self.calls[self.num_calls_around :]:
            changed = [o for o in called if o in own.value.objects and o.kind == "instance"]
            bound = [o for o in called if o.kind == "method" and o.owner in changed]
            name, method = source.shown(call.func), "__call__"
            if isinstance(call.func, ast.Attribute) and any(self.method(o, call.func.attr) for o in changed):
                name, method = source.shown(call.func.value), call.func.attr
            elif bound:
                holding = (self.name_of(changed[0], around) for _, around, _ in self.calls)
                name, method = next(filter(None, holding), name), bound[0].name
            if changed and changed[0].in_state is not None and not site.inside:
                return site._replace(how="left out")
            if changed and changed[0].is_optimizer():
                return site._replace(how="optimizer")
            if changed and (name == "self" or self.is_module(changed[0])):
                return site
            if changed:
                method = f"{changed[0].name}.{method}"
                place = frame.path, call.lineno, call.col_offset + 1, name
                return Site(*place, site.how, site.inside, id(frame.definition), method)
        return site

    def _module_of(self, site: Site) -> Site:
        """A module changes its buffer: as the loop shows it, by the module that is called there,
        which the script must prepare."""
        for call, frame, called in self.calls[self.num_calls_around :]:
            name = source.shown(call.func)
            if any(self.is_module(o) and not o.is_prepared for o in called) and not name.startswith("self.forward"):
                place = frame.path, call.lineno, call.col_offset + 1, name
                return Site(*place, site.how, site.inside, id(frame.definition))
        return site

    @override
    def written(self, value: Value) -> Value:
        found = [self.use(value)]
        for target in value.objects:
            methods = (self.method(target, name) for name in ("__str__", "__repr__", "__format__"))
            method = next((method for method in methods if method is not None), None)
            if target.kind == "instance" and method is not None:
                found.append(self.use(self.run(method, [Value.of(target)], {})))
        return mix(found)

    def is_early(self, made: Object) -> bool:
        """Whether a module is made before ``join()``, with unseeded random numbers."""
        return not self.has_joined and not self.is_seeded and (made.kind == "module" or self.is_module(made))

    def is_module(self, target: Object) -> bool:
        """Whether an instance is a torch module, by its bases."""
        return any(name.rpartition(".")[2] in names.BASES_OF_MODULES for name in target.library_classes())

    def _call_instance(self, target: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        method = self.method(target, "forward") if self.is_module(target) else self.method(target, "__call__")
        if method is None:
            return self._call_module(target, node, args, keywords)
        value = self.run(method, [Value.of(target), *args], keywords)
        given = self.used((*args, *keywords.values()))
        return merge((value, Value.made(given.flags & DATA, given.sites)))

    def _call_module(self, target: Object, node: ast.AST, args: list[Value], keywords: dict[str, Value]) -> Value:
        for value in (*args, *keywords.values()):
            self.call_back(value)
        given = self.used((*args, *keywords.values()))
        for child in sorted(target.children, key=lambda o: getattr(o.node, "lineno", 0)):
            if child.kind == "instance" and self.is_module(child):
                given = mix([given, self._call_instance(child, node, [Value.made(given.flags)], {})])
        if (
            target.has_statistics
            and not target.is_prepared
            and not target.is_evaluating
            and self.inside
            and target.kind == "module"
        ):
            name = self.name_of(target) or target.name or "module"
            write = self.write(node, name, "statistics", Value.made(DATA), own=True)
            self.state.add((target, "statistics"), NOTHING, write)
        content = self.content(target)
        if isinstance(node, ast.Call) and not self.inside and target.kind == "opaque":
            self.unknown = node
        return Value.made(given.flags | (content.flags & DATA), given.sites | content.sites | self._sites_of_given(target))

    def _sites_of_given(self, target: Object, depth: int = 5) -> frozenset[Site]:
        """Where attributes were set of an object of a library's class, or of one in it, by which it
        computes."""
        sites = frozenset(site for name in target.given for site in (self.field(target, name) or NOTHING).sites)
        children = [child for child in target.children if depth and child.kind in ("module", "opaque")]
        return sites.union(*(self._sites_of_given(child, depth - 1) for child in children))


def _owners(function: Value) -> frozenset[Object]:
    return frozenset(target.owner for target in function.objects if target.owner is not None)


def _new_frame(definition: ast.AST, parent: Frame | None) -> Frame:
    outer, global_ = set[str](), set[str]()
    for part in source.own_nodes(source.body_of(definition)):
        if isinstance(part, ast.Nonlocal):
            outer.update(part.names)
        elif isinstance(part, ast.Global):
            global_.update(part.names)
    return Frame(parent, parent.path if parent is not None else "", definition, frozenset(outer), frozenset(global_))
