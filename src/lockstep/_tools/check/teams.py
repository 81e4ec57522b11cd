"""Calls of lockstep's own: of a team, a batch, an evaluation."""

from __future__ import annotations

import ast
from collections.abc import Set

from lockstep._tools.check import source
from lockstep._tools.check.functions import Functions
from lockstep._tools.check.state import CONTENT
from lockstep._tools.check.values import DATA, NOTHING, RANKED, Object, Site, Value

_OPPOSITE = {"max": "min", "min": "max"}
"""How a value is gathered, if its negative is."""


class Teams(Functions):
    """Knows what a team does."""

    def of_team(self, name: str, node: ast.Call, args: list[Value], keywords: dict[str, Value]) -> Value:
        """A method of the team."""
        given = [*args, *keywords.values()]
        used = self.used(given)
        if name == "prepare":
            return self._prepare(node, args)
        if name == "register":
            return self.register(node, args)
        if name == "state":
            kept = self.make(node, "kept state", "state", fresh=False)
            kept.is_kept = True
            return Value.of(kept)
        if name == "per_shard":
            return Value.of(self.make(node, "per shard", "state", fresh=False))
        if name == "evaluate":
            made = self.make(node, "evaluation", "evaluation", fresh=False)
            made.hands_out = any(o.hands_out or o.kind == "list" for value in args[1:2] for o in value.objects)
            if not self.inside:
                self.sink(
                    used._replace(sites=frozenset(s for s in used.sites if s.how in ("average", "statistics", "buffer"))),
                    node,
                    "answer",
                )
            return Value.of(made)
        if name == "epochs":
            return Value.of(self.make(node, "epochs", "epochs", fresh=False))
        if name == "unwrap":
            return args[0] if args else NOTHING
        if name == "backward":
            for hook in self.gradient_hooks:
                self.call_of(hook, hook.definition or ast.Pass(), NOTHING, [Value.made(DATA)], {})
            self.sink(used, node, "weights")
            return NOTHING
        if name in ("any", "best"):
            if name == "any" and node.args:
                varying = {site.name for site in used.sites if site.inside}
                used = used._replace(sites=frozenset(s for s in used.sites if not _is_of_any(s, node.args[0], varying)))
            if not self.inside:
                self.sink(used, node, "decision")
            return NOTHING
        if name in ("log", "print", "save"):
            if not self.inside:
                self.sink(used, node, "print")
            return NOTHING
        if name in ("join", "barrier", "autocast", "main_first", "close"):
            return NOTHING
        if name == "clip_grad_norm_":
            self.sink(used, node, "answer")
            return NOTHING
        return Value.made(0 if "reduce" in name else RANKED)

    def of_batch(self, node: ast.Call, given: list[Value]) -> None:
        """A method of a batch, or of an evaluation."""
        used = self.used(given)
        self.sink(used._replace(sites=frozenset(site for site in used.sites if site.inside)), node, "answer")

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
        return prepared[0] if len(prepared) == 1 else Value.made(0, frozenset(), tuple(prepared))

    def _mark_prepared(self, target: Object, depth: int = 5) -> None:
        target.is_prepared = target.is_kept = True
        if target.is_optimizer():
            self.hold(target, Value.of(*target.children))
            for child in target.children:
                if depth and child.is_optimizer() and not child.is_prepared:
                    self._mark_prepared(child, depth - 1)
            return
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

    def register(self, node: ast.Call, args: list[Value]) -> Value:
        """``team.register(name, value)``."""
        if len(args) < 2:
            return NOTHING
        value = args[1]
        if not value.objects:
            made = self.make(node, "tensor", "registered", fresh=False)
            value = value._replace(objects=frozenset((made,)))
            if isinstance(node.args[1], ast.Name):
                self.state.put(self.key_of(node.args[1].id), value, None)
        self.keep(value.objects)
        return value


def _is_of_any(site: Site, test: ast.AST, varying: Set[str], *, negated: bool = False) -> bool:
    """Whether the result of ``team.any(test)`` is the same however the shards are assigned to
    ranks.

    It is so for the greatest value above a bound: some rank's greatest is above it exactly if the
    greatest of all shards is. It is not so for the greatest value below a bound, or the last value,
    nor for two conditions that must both be true, for each may be so on another rank.

    Args:
        site: what one of the condition's values comes from.
        test: the condition, or a part of it.
        varying: the names of all values that differ between ranks.
        negated: whether the part counts if it is false.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, (ast.Not, ast.Invert)):
        return _is_of_any(site, test.operand, varying, negated=not negated)
    if isinstance(test, ast.BoolOp) or (isinstance(test, ast.BinOp) and isinstance(test.op, (ast.BitAnd, ast.BitOr))):
        parts = test.values if isinstance(test, ast.BoolOp) else [test.left, test.right]
        is_or = isinstance(test.op, (ast.Or, ast.BitOr)) != negated
        if not is_or and sum(not varying.isdisjoint(source.loaded_names(part)) for part in parts) > 1:
            return False
        return all(_is_of_any(site, part, varying, negated=negated) for part in parts if _reads(part, site))
    if len(varying & source.loaded_names(test)) > 1:
        return False
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        above = isinstance(test.ops[0], (ast.Gt, ast.GtE))
        if not above and not isinstance(test.ops[0], (ast.Lt, ast.LtE)):
            return False
        left, right = test.left, test.comparators[0]
        if _reads(left, site) == _reads(right, site):
            return False
        is_left = _reads(left, site)
        return _gathered(left if is_left else right, site) == ("max" if (above == is_left) != negated else "min")
    return _gathered(test, site) == ("and" if negated else "or")


def _gathered(node: ast.AST, site: Site) -> str:
    """How the values of this process's shards become one in an expression, or have become: see
    ``Site.how``."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _OPPOSITE.get(_gathered(node.operand, site), "")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not _reads(node.left, site):
        return _OPPOSITE.get(_gathered(node.right, site), "")
    if not isinstance(node, ast.Call):
        return site.how
    name = source.dotted(node.func).rpartition(".")[2]
    if name in ("max", "amax", "min", "amin", "any", "all") and site.how == "append":
        return {"amax": "max", "amin": "min", "any": "or", "all": "and"}.get(name, name)
    if name in ("bool", "int", "float", "item") and len(node.args) <= 1:
        return _gathered(node.args[0] if node.args else node.func, site)
    return ""


def _reads(node: ast.AST, site: Site) -> bool:
    return site.name in source.loaded_names(node)
