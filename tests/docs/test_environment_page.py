"""docs/environment-variables.md lists every variable of lockstep and torchrun that lockstep
reads."""

import re
from pathlib import Path

import click

from lockstep._cli.group import LazyGroup

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "environment-variables.md").read_text()


def listed(prefix):
    rows = re.findall(rf"^\| `({prefix}\w+)` \| (.*?)(?: \|| \()", PAGE, flags=re.MULTILINE)
    assert len(rows) == len(dict(rows))
    return dict(rows)


def in_sources(prefix):
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    return {name for text in texts for name in re.findall(rf"\b{prefix}[A-Z_]*[A-Z]\b", text)}


def test_each_of_lockstep_is_listed():
    assert listed("LOCKSTEP_").keys() == in_sources("LOCKSTEP_")


def test_each_of_torchrun_is_listed_with_its_option():
    group = LazyGroup(name="lockstep")
    context = click.Context(group)
    options = {}
    for name in group.list_commands(context):
        for option in group.get_command(context, name).params:
            if isinstance(option.envvar, str):
                options[option.envvar] = option.opts
    shown = listed("PET_")
    assert shown.keys() == options.keys()
    assert in_sources("PET_") <= shown.keys()
    assert [name for name, option in shown.items() if option.strip("`") not in options[name]] == []
