"""Promises of the figures: without warm-up, over all epochs, all processes counted."""

import pytest

from lockstep._base.errors import UsageError
from lockstep._tools.compare.figures import figures_of, pooled, relate

pytestmark = pytest.mark.timeout(10)


def evaluation(epoch=0, **values):
    return {"event": "evaluate", "epoch": epoch, "step": 1, "values": values}


def step(epoch=0, **values):
    return {"event": "step", "epoch": epoch, "step": 1, "values": values}


def test_pace_is_of_steady_training_and_an_epoch_is_all_its_samples(start, epoch):
    slower = epoch(epoch=1, steady_samples=800, steady_s=6.0)
    figures = figures_of([start(), epoch(), slower])
    assert figures.samples_per_s == 1600 / 8.0
    assert figures.epoch_s == 1000 / 200.0
    assert (figures.num_epochs, figures.steady_s, figures.includes_warm_up) == (2, 8.0, False)


def test_an_epoch_is_all_its_passes_and_a_pass_that_took_no_step_is_none(start, epoch):
    """As with two loaders in an epoch, and an error in the first step of a last one."""
    second = epoch(num_samples=200, steady_samples=200, steady_s=1.0)
    third, fourth = epoch(epoch=1), epoch(epoch=1, num_samples=200, steady_samples=0, steady_s=1.0)
    nothing = epoch(epoch=2, num_samples=0, steady_samples=0, steady_s=0.0)
    figures = figures_of([start(), epoch(), second, third, fourth, nothing])
    assert (figures.num_epochs, figures.samples_per_epoch, figures.samples_per_s) == (2, 1200, 1800 / 6.0)
    assert figures.epoch_s == 1200 / 300.0
    with pytest.raises(UsageError, match=r"team\.prepare"):
        figures_of([start(), nothing])


def test_shares_are_of_the_last_number_of_processes(start, epoch):
    """As after a resume on another one."""
    data, forward = {"data": 1.0}, {"forward": 1.0}
    figures = figures_of([start(), epoch(split=[data] * 3), epoch(epoch=1, split=[forward] * 2)])
    assert (figures.shares["data"], figures.shares["forward"]) == (0.0, 1.0)


def test_a_run_that_was_all_warm_up_is_measured_whole_and_says_so(start, epoch):
    figures = figures_of([start(), epoch(steady_steps=0, steady_samples=0, steady_s=0.0)])
    assert (figures.samples_per_s, figures.includes_warm_up, figures.cpu_utilisation) == (250.0, True, None)


def test_cpu_utilisation_is_of_all_cores_by_all_processes(start, epoch):
    figures = figures_of([start(world_size=2), epoch(cpu_s=[1.5, 0.5]), epoch(epoch=1, cpu_s=[2.0, 2.0])])
    assert figures.cpu_utilisation == 100 * 6.0 / (4.0 * 4)
    assert figures.utilisation == figures.cpu_utilisation


def test_memory_is_the_sum_over_processes_of_the_peak_of_each(start, epoch):
    events = [start(world_size=2), epoch(peak_rss_bytes=[5, 30]), epoch(epoch=1, peak_rss_bytes=[20, 10])]
    figures = figures_of(events)
    assert (figures.peak_rss_bytes, figures.peak_gpu_bytes, figures.peak_bytes) == (50, None, 50)


def test_on_gpus_utilisation_and_memory_are_theirs(start, epoch):
    first = epoch(cpu_s=[1, 1], peak_rss_bytes=[9, 9], peak_gpu_bytes=[100, 90], gpu_utilisation=[90.0, None])
    second = epoch(epoch=1, cpu_s=[1, 1], peak_rss_bytes=[9, 9], peak_gpu_bytes=[100, 95], gpu_utilisation=[70.0, 40.0])
    figures = figures_of([start(world_size=2, device="cuda"), first, second])
    assert figures.gpu_utilisation_by_rank == (80.0, 40.0)
    assert (figures.utilisation, figures.peak_bytes) == (60.0, 195)


def test_what_could_not_be_read_is_unknown_and_not_nought(start, epoch):
    figures = figures_of([start(device="cuda"), epoch(cpu_s=[None], peak_gpu_bytes=None, gpu_utilisation=None)])
    assert (figures.cpu_utilisation, figures.utilisation, figures.peak_bytes) == (None, None, None)


def test_final_values_are_of_the_last_evaluation(start, epoch):
    events = [start(), step(loss=9.0), epoch(), evaluation(loss=2.0, top1=0.1), evaluation(1, loss=1.0, top1=0.9)]
    figures = figures_of(events)
    assert (figures.loss, figures.loss_from, figures.accuracy, figures.accuracy_from) == (
        *(1.0, "evaluation"),
        *(0.9, "evaluation"),
    )


def test_without_evaluation_they_are_means_of_the_last_epoch(start, epoch):
    steps = [step(loss=9.0, accuracy=0.0), step(1, loss=1.0, accuracy=0.5), step(1, loss=3.0, accuracy=1.0), step(1)]
    figures = figures_of([start(), epoch(), *steps])
    assert (figures.loss, figures.loss_from, figures.accuracy) == (2.0, "training", 0.75)


@pytest.mark.parametrize("more", [(), (step(loss=1.0),)])
def test_a_final_value_that_is_not_finite_is_unknown_and_no_other_takes_its_place(start, epoch, more):
    """Neither that of an earlier evaluation or step, nor one of training."""
    last = evaluation(1, loss=None, accuracy=0.5)
    figures = figures_of([start(), epoch(), *more, evaluation(loss=1.0), last])
    assert (figures.loss, figures.loss_from, figures.accuracy) == (None, "evaluation", 0.5)
    figures = figures_of([start(), epoch(), *more, step(1, loss=1.0), step(1, loss=None)])
    assert (figures.loss, figures.loss_from) == (None, "training")
    assert figures_of([start(), epoch(), *more, step(1, loss=1.0), step(1)]).loss == 1.0


def test_a_run_without_a_pass_cannot_be_measured(start):
    with pytest.raises(UsageError, match=r"team\.prepare"):
        figures_of([start()])


def test_speed_up_efficiency_and_differences_are_against_the_baseline(start, epoch):
    single = figures_of([start(), epoch(), evaluation(loss=0.5, accuracy=0.5)])
    double = figures_of([start(world_size=2), epoch(steady_s=1.25), evaluation(loss=0.25, accuracy=0.75)])
    relation = relate({1: double}, {1: single})
    assert (relation.speed_up, relation.efficiency) == (1.6, 80.0)
    assert (relation.loss_difference, relation.accuracy_difference) == (-0.25, 0.25)


def test_of_several_rounds_the_largest_difference_counts_also_downwards(start, epoch):
    usual, lower = (figures_of([start(), epoch(), evaluation(loss=loss)]) for loss in (2.0, 1.5))
    assert relate({1: lower, 2: usual}, {1: usual, 2: usual}).loss_difference == -0.5


def test_rounds_are_pooled_and_of_memory_the_largest_counts(start, epoch):
    rounds = [figures_of([start(), epoch(steady_s=s, peak_rss_bytes=[b])]) for s, b in ((1.0, 5), (4.0, 9), (2.0, 7))]
    found = pooled(rounds)
    assert (found.samples_per_s, found.peak_rss_bytes, found.steady_s) == (pytest.approx(400.0), 9, 7.0)
    assert found.epoch_s == pytest.approx(1000 / 400.0)
    assert pooled([*rounds[:1], figures_of([start(), epoch(steady_samples=0)])]).includes_warm_up


def test_rows_without_a_common_round_are_compared_without_an_interval(start, epoch):
    """As after Ctrl-C in the second round."""
    single, double = figures_of([start(), epoch()]), figures_of([start(world_size=2), epoch(steady_s=1.0)])
    found = relate({1: double}, {2: single})
    assert (found.speed_up, found.interval, found.is_noise) == (2.0, None, False)
    found = relate({1: double, 2: double}, {1: single, 2: single})
    assert (found.interval.low, found.interval.high, found.is_noise) == (pytest.approx(2.0), pytest.approx(2.0), False)


def test_a_training_loss_is_never_compared_with_one_of_evaluation(start, epoch):
    evaluated = figures_of([start(), epoch(), evaluation(loss=0.5)])
    trained = figures_of([start(), epoch(), step(loss=0.5)])
    assert relate({1: trained}, {1: evaluated}).loss_difference is None
