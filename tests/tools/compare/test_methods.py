"""Promises of the names of methods."""

import pytest
from codes import raises

from lockstep._base import config
from lockstep._base.config import PRECISIONS
from lockstep._base.errors import ConfigError
from lockstep._tools.compare.methods import (
    LAUNCHERS,
    STRATEGIES,
    Method,
    default_methods,
    default_nprocs,
    expand,
    parse_method,
    parse_methods,
)

pytestmark = pytest.mark.timeout(10)


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("single", Method(strategy="single")),
        ("ddp@torchrun", Method(strategy="ddp", launcher="torchrun")),
        (" ddp+bf16-mixed ", Method(strategy="ddp", precision="bf16-mixed")),
        ("single@python+bf16-mixed", Method(strategy="single", launcher="python", precision="bf16-mixed")),
        ("ddp@lockstep+32-true", Method(strategy="ddp")),
    ],
)
def test_a_name_says_strategy_launcher_and_precision(text, method):
    assert parse_method(text) == method


def test_the_name_of_every_method_reads_back_as_the_method():
    for strategy in STRATEGIES:
        for launcher in LAUNCHERS:
            for precision in PRECISIONS:
                method = Method(strategy=strategy, launcher=launcher, precision=precision)
                if config.STRATEGIES[strategy].one_process or launcher != "python":
                    assert parse_method(method.name) == method


@pytest.mark.parametrize(
    ("text", "code", "known"),
    [
        ("warp", "unknown-name", "single, ddp"),
        ("ddp@srun", "unknown-name", "lockstep, torchrun, python"),
        ("ddp+fp8", "unknown-name", "32-true, 16-mixed, 16-master, 16-true"),
        ("ddp+bf16-mixed@torchrun", "method-order", "ddp@torchrun+bf16-mixed"),
        ("ddp@python", "method-needs-launcher", "ddp@torchrun"),
    ],
)
def test_a_name_that_means_nothing_lists_those_that_do(text, code, known):
    with raises(ConfigError, code) as refused:
        parse_method(text)
    assert known in str(refused.value)


def test_data_parallel_in_one_process_is_a_row_of_its_own_where_there_are_gpus():
    assert "dp" in set(default_methods({"gpus"})) - set(default_methods(()))
    rows = expand(parse_methods("dp,dp@python"), (2, 4))
    assert [row.label for row in rows] == ["dp ×1", "dp@python ×1"]


def test_by_default_every_strategy_launcher_and_precision_that_the_machine_has_is_compared():
    names = default_methods({"gpus", "horovod", "mpirun"})
    methods = parse_methods(",".join(names))
    assert tuple(method.name for method in methods) == names
    assert {method.strategy for method in methods} == set(STRATEGIES)
    assert {method.launcher for method in methods} == set(LAUNCHERS)
    assert {method.precision for method in methods} == set(PRECISIONS)
    # emulated by processors
    narrow = {f"ddp+{precision}" for precision in PRECISIONS if precision != "32-true"}
    missing = set(names) - set(default_methods(()))
    assert missing == {"dp", "horovod", "horovod@horovodrun", "ddp@mpirun", *narrow}


@pytest.mark.parametrize(
    ("num_gpus", "num_cores", "expected"),
    [(0, 1, (2,)), (0, 64, (2, 4)), (8, 64, (2, 4, 8)), (6, 64, (2, 4)), (1, 2, (2,))],
)
def test_default_numbers_of_processes_fit_the_machine(num_gpus, num_cores, expected):
    assert default_nprocs(num_gpus=num_gpus, num_cores=num_cores) == expected


def test_ddp_gets_a_row_for_each_number_and_single_one():
    rows = expand(parse_methods("single,ddp@torchrun+bf16-mixed"), (1, 2))
    assert [(row.method.strategy, row.num_processes) for row in rows] == [("single", 1), ("ddp", 1), ("ddp", 2)]
    assert rows[2].slug == "3-ddp-torchrun-bf16-mixed-x2"
    assert rows[2].label == "ddp@torchrun+bf16-mixed ×2"
