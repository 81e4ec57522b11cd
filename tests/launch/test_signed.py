"""The launchers' store: all that PyTorch's store does, and nothing that somebody without the secret
has written counts."""

import threading

import pytest
from codes import raises
from torch.distributed import HashStore, PrefixStore

from lockstep._launch.elastic.signed import ForgedError, SignedStore
from lockstep._launch.secret import Secret


@pytest.fixture
def inner():
    return HashStore()


@pytest.fixture
def store(inner):
    return SignedStore(inner, Secret(b"secret"), "host0:4000")


@pytest.fixture(params=["as it is", "under a prefix", "under PyTorch's prefix"])
def view(request, store):
    if request.param == "as it is":
        return store
    return store.under("one").under("two") if "a prefix" in request.param else PrefixStore("two", PrefixStore("one", store))


def test_it_answers_as_the_store_inside(view):
    view.set("a", "1")
    view.set("empty", "")
    assert (view.get("a"), view.get("empty")) == (b"1", b"")
    assert view.compare_set("b", "", "2") == b"2"
    assert view.compare_set("b", "no", "3") == b"2"
    assert view.compare_set("b", "2", "3") == b"3"
    assert view.multi_get(["b", "a"]) == [b"3", b"1"]
    assert view.check(["a", "b"])
    assert not view.check(["a", "z"])
    view.wait(["a"])
    assert view.delete_key("a")
    assert not view.check(["a"])


def test_prefixes_are_those_of_pytorch(store):
    store.under("one").under("two").set("a", "1")
    assert PrefixStore("two", PrefixStore("one", store)).get("a") == b"1"


def test_numbers_are_counted_however_many_do_it_at_once(view):
    counts = []

    def count():
        counts.extend(view.add("n", 1) for _ in range(50))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counts) == list(range(1, 201))
    assert view.add("n", 0) == 200
    assert view.add("n", -150) == 50
    assert view.add("never", 0) == 0


def test_a_number_whose_name_was_removed_meanwhile_is_counted_from_zero(store, inner):
    store.add("n", 5)
    taken = inner.compare_set

    class Removing:
        """PyTorch's TCP store answers what was expected where there is no such name."""

        def compare_set(self, key, before, after):
            if before and inner.check([key]):
                inner.delete_key(key)
                return before
            return taken(key, before, after)

    store._inner = Removing()
    assert store.add("n", 1) == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("a"),
        lambda store: store.multi_get(["a"]),
        lambda store: store.compare_set("a", "", "mine"),
        lambda store: store.compare_set("a", "theirs", "mine"),
        lambda store: store.add("a", 0),
        lambda store: store.add("a", 1),
    ],
)
@pytest.mark.parametrize("forged", ["theirs", "7", "signed by another", "of another name"])
def test_what_was_not_signed_for_its_name_is_refused_by_whatever_reads_it(store, inner, read, forged):
    if forged == "signed by another":
        SignedStore(inner, Secret(b"another"), "").set("a", "1")
    elif forged == "of another name":
        store.set("b", "1")
        inner.set("a", inner.get("b"))
    else:
        inner.set("a", forged)
    with raises(ForgedError, "store-entry-forged"):
        read(store)
