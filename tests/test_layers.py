"""Data flows one way: the layers of src/lockstep, and what each may know.

Nothing of lockstep is imported to check it, except where a rule is about what an import brings.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "lockstep"

# The engine: what runs inside one process of a training, from top to bottom. A layer imports from
# the rows above it; names in one row are siblings, which never import each other. A name is a file
# (listener.py) or a package (plan/); inside a package, files may import each other.
SPINE = (
    ("base",),  # errors, settings, files, names
    ("plan",),
    ("listener",),
    ("world",),  # what the processes were told, their machines and groups
    ("events", "data", "sync"),  # events and measurements; samples; gradients
    ("prepare",),  # what team.prepare hands back
    ("state",),  # the state of all that into checkpoints, and back
    ("loop",),
    ("joining",),  # how a process comes to its run, and to its team: the only composer
)

# What runs have written: for whoever reads it, with or without torch.
EVENTS = ("events.format", "events.failure", "events.history", "events.writer")

# What all tools may import that look at runs from outside.
OUTSIDE = ("base", "world.environment", "world.machine", *EVENTS, "events.measure.split", "launch", "tools", "cli")

# Beside the engine: the launcher, which starts processes and knows nothing of what they compute,
# and the tools, which look at runs. What each of these may import, by prefix; "" is everything.
ASIDE = {
    "launch": ("base", "world.environment", "world.job", "world.machine"),
    "tools": (),
    "tools.arguments": ("",),  # for type checkers: all settings
    # with listeners, which run inside a training
    "tools.audit": ("",),
    "tools.explain": ("",),
    "tools.replay": ("",),
    "tools.tune": ("",),
    "tools.verify": ("",),
    # from outside
    "tools.check": (*OUTSIDE, "joining.instrument"),
    "tools.checkpoint": (*OUTSIDE, "state.checkpoint", "state.recovery.position"),
    "tools.compare": OUTSIDE,
    "tools.doctor": (*OUTSIDE, "world.comm", "plan.rounds", "sync.exact"),
    "tools.report": (*OUTSIDE, "state.checkpoint", "state.rundir"),
    "tools.runs": (*OUTSIDE, "state.checkpoint", "state.rundir"),
    "tools.slurm": OUTSIDE,
    "tools.trials": (*OUTSIDE, "joining.instrument", "listener"),
    "tools.watch": (*OUTSIDE, "state.rundir", "events.measure.pass_progress"),
    "options": ("base",),  # of other packages' tools
    "observers": ("base", "launch"),  # of other packages
    "testing": ("base", "launch", "tools", *EVENTS),  # of users' tests: a ring around the tools
    "cli": ("",),
    # outermost: what puts the engine beneath other libraries, which nothing imports
    "integrations": ("",),
    "__init__": ("",),
    "__main__": ("cli",),
}

NO_TORCH_DISTRIBUTED = (
    "base.errors",
    "base.config",
    "plan",
    "world.environment",
    "world.job",
    "joining.startup.allotment",
    "tools.check",
    "tools.compare",
    "tools.report",
    "tools.runs",
    "tools.slurm",
    "tools.trials",
    "tools.verify.trace",
    "tools.watch",
    "testing",
    "observers",
    "options",
    "cli",
)

# Reading a variable is world/environment.py's alone. These may copy the environment whole, and set
# variables in it, for the processes that they start or are; the doctor judges a copy.
BUILD_ENVIRONMENTS = ("launch", "tools.trials", "tools.doctor")
# And these read one variable, for the reason given.
READ_ENVIRONMENT = {
    "world.environment": "the one place",
    "base.reports": "where reports go: set around a launch, and read by whoever has one to note, in any ring",
    "world.comm.horovod": "Horovod learns who it is from variables alone: set while it starts, then put back",
    "world.comm.group": "Gloo learns its interface from GLOO_SOCKET_IFNAME alone: set while a group opens, then put back; "
    "and NCCL its channels from NCCL_MAX_P2P_NCHANNELS: set while a group is open unless it is set",
    "events.measure.trackers": "the project that a tracker's user has named, by the tracker's own variable",
    "world.kernels": "PyTorch's deterministic products need CUBLAS_WORKSPACE_CONFIG, set while a run is open unless it is set; "
    "and NVIDIA's libraries round by NVIDIA_TF32_OVERRIDE",
    "world.comm.interface": "the same variable, and NCCL's, as the user may have set them",
}

# The commands' only ways to standard output and standard error.
PRINT = ("cli.echo", "cli.terminal")

# Must be there at once: the command line, and what reads results. (``launch.elastic`` is imported
# where there are several machines.)
WITHOUT_TORCH = (
    "base.escape_control",
    "base.atomic",
    "base.nofollow",
    "base.errors",
    "base.regular_files",
    "base.shapes",
    "world.machine.cores",
    "world.machine.threads",
    "world.machine.addresses",
    "world.machine.sizes",
    "base.stopping",
    "tools.check",
    "base.config",
    "world.environment",
    "plan",
    *EVENTS,
    "tools.verify.trace.lines",
    "tools.verify.trace.traced_run",
    "tools.verify.trace.differences",
    "tools.verify.diagnosis.experiments",
    "tools.verify.diagnosis.causes",
    "tools.replay.digests",
    "tools.replay.request",
    "tools.audit.instrument",
    "tools.tune.instrument",
    "tools.tune.search",
    "tools.explain.errors",
    "launch",
    "tools.compare",
    "tools.doctor",
    "tools.report",
    "tools.runs.inventory",
    "tools.slurm",
    "testing",
    "observers",
    "options",
    "base.exports",
    "world.job",
    "joining.startup.allotment",
    "cli",
)
WITH_TORCH = (
    "launch.elastic",
    "tools.doctor.exchange",
    "tools.doctor.over_hosts",
)


def within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(prefix == "" or module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def layer(module: str) -> str:
    first, *rest = module.split(".")
    return f"tools.{rest[0]}" if first == "tools" and rest else first


def visible_to(name: str) -> tuple[str, ...] | None:
    """The prefixes that a layer may import, itself among them; None: the layer has no place."""
    if name in ASIDE:
        return (name, *ASIDE[name])
    for depth, row in enumerate(SPINE):
        if name in row:
            return (name, *(above for row in SPINE[:depth] for above in row))
    return None


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def read_tree(root: Path) -> dict[str, ast.Module]:
    """The files under ``root`` by module name, without the leading ``lockstep.``; the root's own is
    ``__init__``.

    Without what users are given to write on: it is no module.
    """
    tree = {}
    for path in sorted(root.rglob("*.py")):
        if path.parent.name == "template":
            continue
        tree[plain(module_name(path, root))] = ast.parse(path.read_text(), filename=str(path))
    return tree


def plain(module: str) -> str:
    """A module's name as the tables above have it: without the underscores that mark what is
    private."""
    return ".".join(part if part.startswith("__") else part.removeprefix("_") for part in module.split("."))


def imports(module: str, code: ast.Module, tree: dict[str, ast.Module]) -> Iterator[str]:
    """The modules of the tree that ``code`` imports, anywhere in it: also inside functions and ``if
    TYPE_CHECKING``."""
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import (line {node.lineno}); write lockstep. in full"
            # from package import name: a module of that name, or else something that the package
            # itself defines
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            known = [plain(name.removeprefix("lockstep.")) in tree for name in names]
            names = [name if hit else str(node.module) for name, hit in zip(names, known, strict=True)]
        else:
            continue
        for name in names:
            if name == "lockstep":
                yield "__init__"
            elif name.startswith("lockstep."):
                yield plain(name.removeprefix("lockstep."))


def layer_violations(tree: dict[str, ast.Module]) -> list[str]:
    found = [f"{name} has no place in the table of layers" for name in sorted({*map(layer, tree)}) if not visible_to(name)]
    graph: dict[str, set[str]] = {}
    for module, code in tree.items():
        allowed = visible_to(layer(module)) or ("",)
        graph[module] = set(imports(module, code, tree))
        found += [f"{module} imports {name}" for name in sorted(graph[module]) if not within(name, allowed)]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found.append("a cycle of imports: " + " -> ".join(reversed(error.args[1])))
    return found


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def torch_distributed_violations(tree: dict[str, ast.Module]) -> list[str]:
    found = {}  # a dict keeps the order, and takes a line once
    for module, code in tree.items():
        if not within(module, NO_TORCH_DISTRIBUTED):
            continue
        for node in ast.walk(code):
            names = {dotted(node)} if isinstance(node, ast.Attribute) else set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {f"{node.module}.{alias.name}" for alias in node.names}
            if any(within(name, ("torch.distributed",)) for name in names):
                found[f"{module} uses torch.distributed (line {node.lineno})"] = True
    return list(found)


def environment_violations(tree: dict[str, ast.Module]) -> list[str]:
    found = []
    for module, code in tree.items():
        if module in READ_ENVIRONMENT:
            continue
        parents = {child: node for node in ast.walk(code) for child in ast.iter_child_nodes(node)}
        builds = within(module, BUILD_ENVIRONMENTS)
        for node in ast.walk(code):
            names = {dotted(node)} if isinstance(node, ast.Attribute) else set()
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                names = {f"os.{alias.name}" for alias in node.names}
            touches = names & {"os.environ", "os.environb", "os.getenv", "os.getenvb"}
            if not touches or (builds and touches == {"os.environ"} and not _reads_one_variable(node, parents)):
                continue
            found.append(f"{module} reads the environment (line {node.lineno})")
    return found


def _reads_one_variable(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Whether this ``os.environ`` is more than copied whole, handed on whole, or written to."""
    parent = parents[node]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    if isinstance(parent, ast.Attribute):
        if parent.attr == "pop":  # as a statement it only removes
            return not isinstance(parents[parents[parent]], ast.Expr)
        return parent.attr not in ("copy", "items", "update", "clear")
    return isinstance(parent, (ast.Compare, ast.ImportFrom))


def export_violations(tree: dict[str, ast.Module]) -> list[str]:
    """The package's own file lists names: imports, ``__all__`` and what makes them lazy."""
    found = []
    for node in tree["__init__"].body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # the docstring
        if isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__"):
            continue
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            owners = [target.value if isinstance(target, ast.Subscript) else target for target in targets]
            if all(dotted(owner).startswith("_") for owner in owners):
                continue
        found.append(f"__init__ does more than list names (line {node.lineno})")
    return found


def printing_violations(tree: dict[str, ast.Module]) -> list[str]:
    """What commands print may come from anybody's files: the two places that print write out
    control characters."""
    found = []
    for module, code in tree.items():
        if not within(module, ("cli",)) or module in PRINT:
            continue
        for node in ast.walk(code):
            if not isinstance(node, ast.Call):
                continue
            is_constant = dotted(node.func) == "print" and all(isinstance(part, ast.Constant) for part in node.args)
            if dotted(node.func) in ("print", "click.echo", "click.secho", "Console") and not is_constant:
                found.append(f"{module} prints past cli.echo and cli.terminal (line {node.lineno})")
    return found


RULES = (
    layer_violations,
    torch_distributed_violations,
    environment_violations,
    export_violations,
    printing_violations,
)


def test_each_directory_of_code_is_a_package():
    without = {path.parent for path in SOURCE.rglob("*.py") if not (path.parent / "__init__.py").exists()}
    assert {path.name for path in without} <= {"template"}, "the wheel leaves these out"


@pytest.fixture(scope="module")
def sources():
    return read_tree(SOURCE)


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_the_tree_keeps(sources, rule):
    assert not (found := rule(sources)), "\n".join(found)


@pytest.mark.long
def test_what_must_start_quickly_does_not_import_torch(sources):
    modules = [name for path in SOURCE.rglob("*.py") if plain(name := module_name(path, SOURCE)) in sources]
    modules = [m for m in modules if within(plain(m), WITHOUT_TORCH) and not within(plain(m), WITH_TORCH)]
    assert len(modules) > 8
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    program += "    if 'torch' in sys.modules: sys.exit(f'importing {name} imports torch')\n"
    names = ["lockstep", *(f"lockstep.{module}" for module in modules)]
    run = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


@pytest.mark.long
def test_the_public_names_are_those_that_are_visible():
    # In a process of its own: importing a submodule, as other tests do, makes it an attribute of
    # the package too.
    program = """
import sys, types, lockstep
visible = {name for name in dir(lockstep) if not name.startswith("_")}
modules = {name for name in visible if isinstance(getattr(lockstep, name), types.ModuleType)}
public = set(lockstep.__all__)
assert "join" in public, public
assert public >= visible - modules, f"visible, but not in __all__: {visible - modules - public}"
assert public - {"__version__"} <= visible, f"in __all__, but not visible: {public - visible}"
assert not [name for name in public if isinstance(getattr(lockstep, name), types.ModuleType)], "a module in __all__"
assert not [name for name in sys.modules if name.startswith("lockstep._tools.")], "a tool was imported"
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr


# The checks themselves: each is given a file with one thing wrong, and names it.
WRONG = {
    "upwards": ("plan/shards.py", "from lockstep._joining.team import Team", "plan.shards imports joining.team"),
    "inside a function": (
        "plan/shards.py",
        "def f():\n    import lockstep._joining.team",
        "plan.shards imports joining.team",
    ),
    "a sibling": ("sync/ddp.py", "from lockstep._data import loader", "sync.ddp imports data.loader"),
    "no place": ("helpers.py", "", "helpers has no place in the table of layers"),
    "a cycle": ("joining/team.py", "import lockstep._joining.team", "a cycle of imports: joining.team"),
    "collectives": ("plan/shards.py", "import torch.distributed as dist", "plan.shards uses torch.distributed (line 1)"),
    "environment": ("joining/team.py", "import os\nos.environ['X'] = '1'", "joining.team reads the environment (line 2)"),
    "one variable": ("launch/local.py", "import os\nos.environ.get('X')", "launch.local reads the environment (line 2)"),
    "printing": ("cli/runs.py", "import click\nclick.echo(x)", "cli.runs prints past cli.echo and cli.terminal (line 2)"),
    "work at import": ("__init__.py", "print('hello')", "__init__ does more than list names (line 1)"),
}
RIGHT = {
    "sync/ddp.py": "from lockstep._base import errors\nimport torch.distributed",
    "launch/local.py": "import os\nos.environ['X'] = '1'\nf({**os.environ}, dict(os.environ))\nos.environ.pop('X')",
    "__init__.py": "'''Names.'''\nfrom lockstep._joining.team import join\n__all__ = ['join']\ndef __getattr__(name): ...",
}


def _violations(files: dict[str, str]) -> list[str]:
    everything = {"__init__.py": "", "base/errors.py": "", "data/loader.py": "", "joining/team.py": "", **files}
    tree = {name.removesuffix(".py").replace("/", "."): ast.parse(text) for name, text in everything.items()}
    return [violation for rule in RULES for violation in rule(tree)]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tree_that_breaks_one_rule_is_found_out(wrong):
    name, text, message = WRONG[wrong]
    [found] = _violations({name: text})
    assert found.startswith(message)


def test_a_tree_that_keeps_the_rules_passes():
    assert _violations(RIGHT) == []
