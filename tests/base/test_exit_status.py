"""What an exit handler knows of how its script has ended."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.quick, pytest.mark.timeout(30)]
HEAD = """
import atexit, builtins, os, sys, threading
from sys import exit as early
originals = sys.exit, builtins.exit, builtins.quit
import joining, other
from lockstep._base.exit_status import ExitStatus
status = joining.join(ExitStatus)
atexit.register(lambda: os.write(1, status.now().name.encode()))
def main(code=None):
    return code
"""
ENDS = {
    "pass": "WELL",
    "sys.exit()": "WELL",
    "sys.exit(0)": "WELL",
    "sys.exit(main())": "WELL",
    "sys.exit(main(3))": "FAILED",
    "sys.exit('text')": "FAILED",
    "exit(1)": "FAILED",
    "quit()": "WELL",
    "raise SystemExit(0)": "UNKNOWN",
    "raise SystemExit(1)": "UNKNOWN",
    "early(1)": "FAILED",
    "early()": "WELL",
    "joining.early(1)": "FAILED",
    "joining.early(0)": "WELL",
    "other.early(1)": "UNKNOWN",
    "try:\n    sys.exit(1)\nexcept SystemExit:\n    pass": "WELL",
    "for _ in range(3):\n    try:\n        sys.exit(1)\n    except SystemExit:\n        break": "WELL",
    "thread = threading.Thread(target=sys.exit, args=(1,)); thread.start(); thread.join()": "WELL",
    "thread = threading.Thread(target=sys.exit, args=(1,)); thread.start(); thread.join(); sys.exit(0)": "WELL",
    "status.end()\nassert (sys.exit, builtins.exit, builtins.quit) == originals and early is sys.exit": "WELL",
    "import pickle\nassert pickle.loads(pickle.dumps(sys.exit)) is sys.exit": "WELL",
}
CALLED = {
    "sys.exit(main(0))": "WELL",
    "sys.exit(main(1))": "FAILED",
    "exit(main(0))": "WELL",
    "exit(main('text'))": "FAILED",
    "early(main(0))": "WELL",
    "early(main(1))": "FAILED",
    "raise SystemExit(main(0))": "UNKNOWN",
    "sys.exit(main(0) or main(1))": "FAILED",
}


@pytest.mark.parametrize("end", CALLED, ids=repr)
def test_the_end_is_known_where_the_run_begins_inside_the_call_whose_result_is_the_status(tmp_path, end):
    (tmp_path / "script.py").write_text(
        "import atexit, os, sys\n"
        "from sys import exit as early\n"
        "import lockstep\n"
        "def main(code):\n"
        "    from lockstep._base.exit_status import ExitStatus\n"
        "    status = ExitStatus()\n"
        "    atexit.register(lambda: (os.write(1, status.now().name.encode()), os._exit(0)))\n"
        "    if code == 0: status.end()\n"
        "    return code\n" + end
    )
    run = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == CALLED[end], run


@pytest.mark.parametrize("as_module", [False, True], ids=["script", "module"])
@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_the_end_of_a_script_is_known_where_it_can_be(tmp_path, end, as_module):
    (tmp_path / "script.py").write_text(HEAD + end)
    for name in ("joining", "other"):
        (tmp_path / f"{name}.py").write_text("from sys import exit as early\ndef join(what): return what()\n")
    words = ["-m", "script"] if as_module else ["script.py"]
    run = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout == ENDS[end], run


def test_a_child_of_multiprocessing_knows_its_error(tmp_path):
    (tmp_path / "child.py").write_text(
        "import multiprocessing, os, sys\n"
        "from multiprocessing.util import Finalize\n"
        "def train(code):\n"
        "    from lockstep._base.exit_status import ExitStatus\n"
        "    status = ExitStatus()\n"
        "    Finalize(None, lambda: os.write(1, status.now().name.encode() + b' '), exitpriority=100)\n"
        "    if code == 'error': raise ValueError\n"
        "    if code is not None: sys.exit(code)\n"
        "if __name__ == '__main__':\n"
        "    for method in 'fork', 'spawn':\n"
        "        for code in None, 0, 1, 'error':\n"
        "            child = multiprocessing.get_context(method).Process(target=train, args=(code,))\n"
        "            child.start(); child.join()\n"
    )
    run = subprocess.run([sys.executable, "child.py"], cwd=tmp_path, capture_output=True, text=True)
    told = run.stdout.split()
    assert (told[:3], told[4:7]) == (["WELL", "WELL", "FAILED"],) * 2, run
    assert {"WELL"}.isdisjoint(told[3::4]), run
