"""Finds words and phrases that the style of this project avoids, with what to write instead.

``python tests/docs/words.py FILES...`` prints ``file:line: word -> instead`` for Markdown files and
Python sources; ``--help-texts`` adds the help of every command. Code (spans, blocks, examples) and
text in double quotation marks are left out: they quote what somebody else wrote.
"""

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCKS = r"lock|locks|GIL|mutex|semaphore|flock|lease|port|memory|reference|file descriptor"
NO_NOUN = "and|or|in|that|which|is|are|for|with|at|to|by|on|as|of|not|from"
# A word or phrase, as a regular expression, and what to write instead. A few words have a proper
# use, which the expression leaves out ("holds the lock", "stands for", "comes with").
BANNED = {
    r"(the|an|another|same|other|different|one|right|wrong|good|own) answers?": "result; weights",
    r"answers (of|for) (a|the) (run|script|training)": "results",
    r"(equal )?to the bit": "bit-identical",
    r"(the )?(same|equal) bits": "bit-identical",
    r"one digest": "the same digest",
    r"beside": "next to; compared with; while",
    r"besides": "also; in addition",
    r"aside": "dry run; separately",
    r"anew": "again; from the start",
    r"told|tells?|telling": "print; report; detect; distinguish",
    r"says|is said|are said|say so|says so": "print; report; state",
    r",? say(?=[,;)])": "for example",
    r"(stays?|stayed) (as (it|they) (is|was|are|were)|what)|(is|are) left (as (it|they) (is|are)|alone)": "is unchanged",
    r"stands?(?! (for|out)\b)|stood|standing": "is; is located",
    rf"(holds?|held|holding)(?! (a|an|the|its|their|that|this|no)? ?([\w'-]+ )?({LOCKS})\b)": "contain; be true; keep; wait",
    r"dealt": "assigned",
    r"(comes?|came|coming) (of|to (its|their|an|the) end|back)": "result from; be caused by; finish; return",
    r"foreseen?": "expected; predicted",
    r"(is|are|stands?) in the way": "prevents this",
    r"where (this|it) ends": "limitations",
    r"proves?|proved|proof|proofs|proving": "verify; check; show",
    r"(goes|go|going|went) on|on and on": "continue",
    r"(is|are|was|were) over(?! (\d|(the|a|an|all|each|every)\b))": "finished; exited",
    r"(has|have|had) ended|com(es?|ing) to (its|their|an) end": "finished; exited; ended",
    r"(is|are|was|were|been|be) given": "is passed; is set",
    # Not before a noun ("the norm of its own gradient").
    rf"of (its|their|his|one's|the script's) own(?= *([^\w\s`]|$|({NO_NOUN})\b))": "separate; own; (drop)",
    r"whoever": "anyone who",
    r"somebody": "another process; someone",
    r"nobody": "no one; the passive, with the actor named",
    r"as ever|as (it|they) (is|are|was|were)(?=[.,;:)]|$)": "unchanged; still works",
    r"gone": "exited; deleted; missing",
    r"mend|mends|mended|mending": "fix",
    r"in words|in place of": "as text; instead of",
    r"by turns|in turns": "alternately; intermittently",
    r"at once": "immediately; at the same time",
    r"alike|(is|are|was|were) unlike": "in the same way; different",
    r"unsaved": "without saving; not saved",
    r"a few words of": "for example",
    r"(is|are|was|were|to be) had": "get; contain",
    r"nothing is to be|is to be|are to be": "must be; is needed",
    r"those (that|of|which|who)": "say the noun again",
    r"whole batch": "global batch",
    r"data sets?": "dataset",
    r"micro-steps?": "micro-batch",
    r"spoilt": "discarded; invalid",
}
BRITISH = {
    r"(normal|initial|synchron|optim|serial|recogn|organ|penal|summar|quant|token|general)is(e|es|ed|ing|ation|er|ers)": "-ize",
    r"behaviours?": "behavior",
    r"colours?": "color",
    r"neighbours?": "neighbor",
    r"favours?": "favor",
    r"(label|travel|cancel|signal)l(ed|ing)": "one l (but cancellation)",
    r"misspelt|learnt|spelt": "-ed",
}
# Only where a clause begins: "; else", ", else". (`if a else b` is code.)
ELSE = r"(?<=[,;.(:] )else(?! if\b)"


@dataclass(frozen=True)
class Found:
    """A word that should be another one."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.word} -> {self.instead}"


def _compiled():
    for pattern, instead in (BANNED | BRITISH).items():
        yield re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), instead
    yield re.compile(rf"{ELSE}(?![\w-])", re.IGNORECASE), "otherwise"


PATTERNS = list(_compiled())


def found_in(text, path, first_line=1):
    """What is found in text without markup, in which lines may break anywhere."""
    flat = re.sub(r"\n[ \t]*", lambda gap: "\n" if "\n" in gap[0] else " ", text)
    joined = flat.replace("\n", " ")
    hits = []
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(joined):
            line = first_line + flat.count("\n", 0, match.start())
            hits.append(Found(path, line, match[0].strip(" ,"), instead))
    return sorted(hits, key=lambda hit: hit.line)


def blank(match):
    """The lines of a match, without what is in them."""
    return "X" + re.sub(r"[^\n]+", "", match[0])


def without_quotations(text):
    """Without code spans, links' targets and what is in quotation marks."""
    text = re.sub(r"(`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)\1(?!`)", blank, text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    return re.sub(r'["“](?:(?!\n[ \t]*\n)[^"”]){1,400}["”]', blank, text)


def prose_of_markdown(text):
    """The prose of a page, in the same lines."""
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.DOTALL)
    text = re.sub(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2[^\n]*$", blank, text, flags=re.DOTALL | re.MULTILINE)
    # An indented block follows an empty line, and is no part of a list.
    text = re.sub(r"(?<=\n\n)(?:(?:    |\t)[^\n]*\n)+", blank, text)
    text = without_quotations(text)
    # Each heading, item, cell and paragraph is read alone.
    text = re.sub(r"^( *)(#+|[-*]|\d+\.) ", r"\1. ", text, flags=re.MULTILINE)
    return re.sub(r"[*|]|<br>", " ", text).replace("\n\n", "\n.\n")


def prose_of_docstring(text):
    """The prose of a docstring: no examples, no literal blocks."""
    lines, literal = [], None
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        is_code = literal is not None or line.lstrip().startswith((">>>", "... ", "$ ", "| "))
        lines.append("" if is_code else line)
        if literal is None and line.rstrip().endswith("::"):
            literal = indent
    # Not the names of arguments.
    return without_quotations(re.sub(r"^( +)\*{0,2}\w+: ", r"\1. ", "\n".join(lines), flags=re.MULTILINE))


def is_text(value):
    """Whether a constant is a text for people: it has spaces between words, and no code."""
    return isinstance(value, str) and len(re.findall(r"[A-Za-z]{2,} (?=[A-Za-z{`'\"(])", value)) > 1


class Strings(ast.NodeVisitor):
    """Collects docstrings, and the strings that a module shows to people.

    Strings that are compared, or are patterns, are left out: they are the words of others.
    """

    def __init__(self):
        self.texts = []

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            self.texts.append((node.lineno, prose_of_docstring(node.value.value)))
        else:
            self.generic_visit(node)

    def visit_Constant(self, node):
        if is_text(node.value):
            self.texts.append((node.lineno, without_quotations(node.value)))

    def visit_JoinedStr(self, node):
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += part.value
            else:
                text += "{}"
                self.visit(part.value)
        if is_text(text):
            self.texts.append((node.lineno, without_quotations(text)))

    def visit_Compare(self, node):
        """Compared texts are not ours."""

    def visit_MatchValue(self, node):
        """Nor are these."""

    def visit_Call(self, node):
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re":
            return
        if isinstance(function, ast.Attribute) and function.attr in ("startswith", "endswith", "removeprefix", "partition"):
            return
        self.generic_visit(node)


def found_in_file(path):
    """What is found in a Markdown page or a Python source."""
    shown = str(path.resolve().relative_to(ROOT)) if path.resolve().is_relative_to(ROOT) else str(path)
    text = path.read_text()
    if path.suffix != ".py":
        return found_in(prose_of_markdown(text), shown)
    strings = Strings()
    strings.visit(ast.parse(text))
    return [hit for line, prose in sorted(strings.texts) for hit in found_in(prose, shown, line)]


def help_texts():
    """The help of every command by its name, as it is printed."""
    import click

    from lockstep._cli.group import group

    def tree(command, parent, name):
        context = click.Context(command, parent=parent, info_name=name, max_content_width=80)
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                yield from tree(command.get_command(context, child), context, child)

    return dict(tree(group, None, "lockstep"))


def found_in_help():
    return [hit for name, text in help_texts().items() for hit in found_in(without_quotations(text), f"{name} --help")]


def pages():
    """The pages that are checked."""
    tops = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return tops + sorted((ROOT / "docs").rglob("*.md"))


def sources():
    return sorted((ROOT / "src").rglob("*.py"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: all pages and sources")
    parser.add_argument("--help-texts", action="store_true", help="check the help of every command, too")
    arguments = parser.parse_args()
    files = [
        file for given in arguments.files for file in (sorted(given.rglob("*.[mp][dy]")) if given.is_dir() else [given])
    ]
    hits = [hit for file in files or pages() + sources() for hit in found_in_file(file)]
    hits += found_in_help() if arguments.help_texts or not files else []
    for hit in hits:
        print(hit)
    print(f"{len(hits)} found", file=sys.stderr)
    sys.exit(bool(hits))


if __name__ == "__main__":
    main()
