"""The number of threads of native libraries, whenever they are loaded."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

# ``import openmp`` loads PyTorch's OpenMP as ``import numpy`` loads its BLAS: quicker than all of
# PyTorch. By themselves both take one thread here.
BEGIN = """
import json, threading
from lockstep._world.machine.threads import Lowered, libraries, set_number, use_threads

def numbers():
    return {library.user_api: library.num_threads for library in libraries()}

def choose(number):
    for library in libraries():
        library.set_num_threads(number)
        getattr(library, "clear_controlling_thread", int)()

def tell(*found):
    print(json.dumps(found))
"""
BLAS, OPENMP = ("numpy", "blas"), ("openmp", "openmp")
ORDERS = pytest.mark.parametrize(("first", "second"), [(BLAS, OPENMP), (OPENMP, BLAS)], ids=["BLAS first", "OpenMP first"])


@pytest.fixture
def told(tmp_path):
    """``told(source)``: what it tells, in a process that has loaded no library yet."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    path = next(Path(found.origin).with_name("lib").glob("libgomp*"))
    (tmp_path / "openmp.py").write_text(f"import ctypes\nctypes.CDLL({str(path)!r})\n")

    def run(source):
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        here = f"import sys\nsys.path.append({str(tmp_path)!r})\n"
        command = [sys.executable, "-c", here + BEGIN + textwrap.dedent(source)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@ORDERS
def test_a_library_that_is_loaded_later_gets_the_number_and_earlier_ones_keep_what_the_script_chose(told, first, second):
    found = told(
        f"""
        import {first[0]}
        before = numbers()
        use_threads(3)
        given = numbers()
        choose(2)
        import {second[0]}
        later = numbers()
        choose(2)
        import wave
        tell(before, given, later, numbers())
        """
    )
    first, second = first[1], second[1]
    assert found == [{first: 1}, {first: 3}, {first: 2, second: 3}, {first: 2, second: 2}]


@pytest.mark.parametrize(("module", "kind"), [BLAS, OPENMP])
def test_a_library_that_is_loaded_before_a_fetch_has_one_thread_in_it_and_the_number_behind_it(told, module, kind):
    found = told(
        f"""
        use_threads(3)
        import {module}
        lowered = Lowered()
        during, changed = numbers(), lowered.has_changed
        lowered.put_back()
        choose(2)
        lowered.put_back()
        behind = numbers()
        use_threads(1)
        tell(during, changed, behind, Lowered().has_changed)
        """
    )
    assert found == [{kind: 1}, True, {kind: 2}, False]


def test_libraries_keep_their_own_numbers_until_one_is_given_and_the_last_given_counts(told):
    found = told(
        """
        libraries()
        import openmp
        choose(2)
        before = numbers()
        use_threads(3)
        use_threads(4)
        import numpy
        tell(before, numbers())
        """
    )
    assert found == [{"openmp": 2}, {"openmp": 4, "blas": 4}]


def test_a_number_that_another_thread_of_the_script_sets_afterwards_counts(told):
    found = told(
        """
        import numpy
        use_threads(3)
        thread = threading.Thread(target=choose, args=(2,))
        thread.start()
        thread.join()
        tell(numbers())
        """
    )
    assert found == [{"blas": 2}]
