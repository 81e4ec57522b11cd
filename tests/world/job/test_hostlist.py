"""Slurm's lists: every host once, in its order, with its zeros. (tests/cluster asks Slurm
itself.)"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep._world.job.hostlist import expand_counts, expand_hosts

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("a,b", ["a", "b"]),
        ("a[1-3,07-09],b", ["a1", "a2", "a3", "a07", "a08", "a09", "b"]),
        (
            "ns[3182447,3185995,3186000-3186002,31374487]",
            [f"ns{n}" for n in (3182447, 3185995, 3186000, 3186001, 3186002, 31374487)],
        ),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_a_list_of_hosts_names_every_host(text, hosts):
    assert expand_hosts(text) == hosts


@given(st.integers(0, 120), st.integers(0, 30), st.integers(1, 4))
def test_a_range_has_the_width_of_its_first_number(first, more, width):
    numbers = range(first, first + more + 1)
    text = f"n[{first:0{width}d}-{numbers[-1]:0{width}d}]"  # as Slurm writes them: of one width, but for 8-10
    assert expand_hosts(text) == [f"n{number:0{width}d}" for number in numbers]


@pytest.mark.parametrize("text", ["", "a,", "a[1-", "a[b]", "a[3-1]"])
def test_what_is_no_list_of_hosts_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        expand_hosts(text)


@pytest.mark.parametrize(("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2])])
def test_a_list_of_counts_says_each_as_often_as_it_comes(text, counts):
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "a", "2(x)", "2(3)", "-1", "1,"])
def test_what_is_no_list_of_counts_is_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        expand_counts(text)
