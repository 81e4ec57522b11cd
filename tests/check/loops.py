"""The loops of ``corpus/``, and what is to be found in them: run it for figures of the reading.

.venv/bin/python tests/check/loops.py
"""

import ast
import platform
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lockstep.tools.check.files import read_script
from lockstep.tools.check.reader import read_source

TESTS = Path(__file__).parents[1]
CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.py"))
IDIOMS = TESTS / "idioms"
MARK = re.compile(r"# (LS\d+)(\??)$")


@dataclass(frozen=True)
class Loop:
    """A function of the corpus that trains, with the lines of all definitions that only it uses."""

    name: str
    file: Path
    lines: range


def expected(path):
    """Line, code and certainty of every finding that a comment promises."""
    found = ((number, MARK.search(line)) for number, line in enumerate(path.read_text().splitlines(), 1))
    return {(number, match[1], not match[2]) for number, match in found if match}


def findings(path):
    """The same of what is found."""
    return {(f.line, f.code, f.certain) for f in read_source(path.read_text(), path.name)}


def loops(path):
    """The functions without arguments: each reaches from the end of the one before it to its own end."""
    begin, result = 1, []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.args.args and node.name != "start":
            result.append(Loop(node.name, path, range(begin, node.end_lineno + 1)))
            begin = node.end_lineno + 1
    return result


def idioms():
    """The idioms, each with its findings. What stands before one, down from the one above it, is its own, such as a class."""
    sys.path.insert(0, str(IDIOMS))
    from table import TABLE, TOPICS

    result = []
    for name, rows in TABLE.items():
        path = Path(TOPICS[name].__file__)
        left = read_script(path)
        ends = {node.name: node.end_lineno for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
        for row in sorted(rows, key=lambda row: row.line):
            mine = [finding for finding in left if Path(finding.path) == path and finding.line <= ends[row.name]]
            left = [finding for finding in left if finding not in mine]
            result.append((row, mine))
        assert left == [], "in what idioms share"
    return result


def figures():
    """How many loops are right and wrong, and of how many the reading says so."""
    counts = dict.fromkeys(("right", "false", "wrong", "found"), 0)
    for path in CORPUS:
        wanted, got = expected(path), {line for line, _, certain in findings(path) if certain}
        for loop in loops(path):
            is_wrong = any(line in loop.lines and certain for line, _, certain in wanted)
            is_found = any(line in loop.lines for line in got)
            counts["wrong" if is_wrong else "right"] += 1
            counts["found" if is_wrong else "false"] += is_found
    own = dict(counts)
    for row, found in idioms():
        certain = [f for f in found if f.certain]
        kind = type(row.promise).__name__
        if kind == "Equal":
            counts["right"] += 1
            counts["false"] += any(not finding.starts_anew for finding in certain)
        elif kind == "Differs":
            counts["wrong"] += 1
            counts["found"] += any(finding.differs for finding in certain)
    return own, counts


def main():
    own, counts = figures()
    longest = max((*CORPUS, *IDIOMS.glob("topics/*.py")), key=lambda path: len(path.read_text()))
    text = longest.read_text()
    took = []
    for _ in range(7):
        begin = time.process_time()
        read_source(text)
        took.append(time.process_time() - begin)
    for title, found in (("corpus/", own), ("corpus/ and tests/idioms", counts)):
        print(
            f"{title}: {found['wrong']} wrong, {found['found']} found; {found['right']} right, {found['false']} of them found"
        )
    print(f"{longest.name}: {len(text.splitlines())} lines in {1000 * min(took):.0f} ms, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
