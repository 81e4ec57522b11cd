"""Promises of the digest journal: read as if nobody had interrupted the run, and compared to the
first difference. Pure."""

import pytest
from codes import raises

from lockstep._base.errors import UsageError
from lockstep._tools.replay.digests import Digests, gather, row
from lockstep._tools.replay.step_names import step_with_nan, step_with_worst_loss
from lockstep._tools.verify.trace.differences import compare
from lockstep._tools.verify.trace.lines import exact
from lockstep._tools.verify.trace.traced_run import ShardKey

pytestmark = pytest.mark.timeout(20)


def start(launch, after=0):
    return {"event": "start", "launch": launch, "after": after, "every": 2, "shards": 2, "exact": True}


def line(step, shard, loss, **more):
    text = row(ShardKey(step, 0, shard, 0), more.pop("samples", f"samples-{step}"), "-", (exact(loss),))
    return {"event": "steps", "last": step, "shards": text, **more}


def journal(*losses, state="same", gradient=("g", 1.0), **more):
    full = {"state": {"model": state}, "gradients": [[gradient[0], exact(gradient[1])]]}
    lines = [line(step, 0, loss, **more, **(full if step % 2 == 0 else {})) for step, loss in enumerate(losses, 1)]
    return gather([[start("a"), *lines]])


def test_a_row_says_what_was_put_in():
    key, losses = ShardKey(3, 1, 2, 0), [exact(0.1), exact(float("nan"))]
    digests = Digests()
    digests.add({"shards": row(key, "1a2b", "-", losses)}, until=3)
    [(found, ((_, line),))] = digests.shards_of(3)
    assert (found, line["batches"], line["losses"]) == (key, [{"samples": "1a2b", "content": None}], losses)
    with pytest.raises(ValueError, match="damaged"):
        digests.add({"shards": "3 1 2 0 1a2b"}, until=3)


def test_a_launch_that_goes_on_takes_the_place_of_what_came_after_its_checkpoint():
    ranks = [
        [start("one"), line(1, 0, 1.0), line(2, 0, 2.0), line(3, 0, 3.0), start("two", after=1), line(2, 0, 20.0)],
        [start("one"), line(1, 1, 1.5), line(2, 1, 2.5)],
    ]
    found = gather(ranks)
    shards = [pair for step in found.numbers() for pair in found.shards_of(step)]
    losses = {(key.step, key.shard): line["losses"][0] for key, ((_, line),) in shards}
    assert losses == {(1, 0): exact(1.0), (1, 1): exact(1.5), (2, 0): exact(20.0)}


def test_the_first_difference_is_found_in_the_loss_or_in_the_state_before_it():
    found = compare(journal(1.0, 2.0, 3.0), journal(1.0, 2.0, 3.5))
    assert (found.difference.step, found.difference.stage) == (3, "loss")
    assert (found.difference.place, found.difference.values) == ("step 3, shard 0: loss", ("3.0", "3.5"))
    found = compare(journal(1.0, 2.0, 3.0), journal(1.0, 2.0, 3.5, state="other"))
    assert (found.difference.step, found.difference.stage, found.difference.name) == (2, "state", "model")


def test_up_to_a_tolerance_losses_may_differ_and_samples_may_not():
    one, two = journal(1.0, 2.0), journal(1.0001, 2.0, state="other")
    assert compare(one, two, tolerance=1e-3).difference is None
    assert compare(one, two, tolerance=1e-5).difference.stage == "loss"
    assert compare(one, journal(1.0001, 2.0, samples="others"), tolerance=1e-3).difference.stage == "samples"


def test_a_nan_of_both_is_equal_also_up_to_a_tolerance_and_what_only_one_records_is_not_compared():
    def of(*losses, **state):
        shards = row(ShardKey(1, 0, 0, 0), "s", "-", list(map(exact, losses)))
        return gather([[start("a"), {"event": "steps", "last": 1, "shards": shards, "state": {"model": "a", **state}}]])

    one, two = of(float("nan"), 1.0), of(float("nan"), 1.0001)
    assert compare(one, two, tolerance=1e-3).difference is None
    assert compare(one, of(1.0, 1.0), tolerance=1e-3).difference.stage == "loss"
    for pair in ((of(1.0), of(1.0, ema="b")), (of(1.0, ema="b"), of(1.0))):
        found = compare(*pair)
        assert (found.difference, found.states) == (None, (1,))


def test_journals_without_a_common_step_are_never_called_equal():
    early, late = journal(1.0, 2.0), gather([[start("a"), line(9, 0, 1.0)]])
    assert compare(early, late).is_empty


def test_a_gradient_that_differs_comes_before_the_state():
    one, two = journal(1.0, 2.0), journal(1.0, 2.0, state="other", gradient=("h", 2.0))
    found = compare(one, two).difference
    assert (found.step, found.stage) == (2, "gradient")
    assert [value.partition(",")[0] for value in found.values] == ["digest g", "digest h"]
    assert [value.rpartition(" ")[2] for value in found.values] == ["1.0", "2.0"]


def test_steps_are_found_by_name():
    digests = journal(1.0, 5.0, float("nan"), 2.0)
    assert step_with_nan(digests)[0] == 3
    assert step_with_worst_loss(digests)[0] == 2
    with raises(UsageError, "no-nan"):
        step_with_nan(journal(1.0))


def test_a_shard_in_which_a_nan_has_ended_the_run_is_compared_up_to_that():
    def of(*losses):
        return gather(
            [[start("a"), {"event": "steps", "shards": row(ShardKey(1, 0, 0, 0), "s", "-", list(map(exact, losses)))}]]
        )

    whole = of(1.0, float("nan"), 3.0)
    for other, is_equal in ((of(1.0, float("nan")), True), (of(2.0, float("nan")), False), (of(1.0), False), (of(), False)):
        for pair in ((whole, other), (other, whole)):
            assert (compare(*pair).difference is None) == is_equal
