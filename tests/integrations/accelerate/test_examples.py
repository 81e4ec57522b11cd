"""accelerate's own examples, with the import changed: equal weights, and equal lines printed, on
any number of processes.

Their text is in ``examples/``; what they download is made by ``examples/offline.py``.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "examples"))
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

CHECKPOINTS = {"use_stateful_dataloader": False, "resume_from_checkpoint": None, "output_dir": "saved"}
IMAGES = {"data_dir": "images"}
RUN = {
    "nlp_example": ({}, {}),
    "complete_nlp_example": (
        {},
        {**CHECKPOINTS, "checkpointing_steps": "epoch", "with_tracking": True, "project_dir": "logs"},
    ),
    "cv_example": ({"image_size": 8, "batch_size": 8}, IMAGES),
    "complete_cv_example": (
        {"image_size": 8, "batch_size": 8},
        {**IMAGES, **CHECKPOINTS, "checkpointing_steps": "3", "with_tracking": True, "project_dir": "logs"},
    ),
    "automatic_gradient_accumulation": ({}, {}),
    "checkpointing": ({"batch_size": 32}, {**CHECKPOINTS, "checkpointing_steps": "2"}),
    "cross_validation": ({"num_epochs": 1}, {"num_folds": 2}),
    "early_stopping": ({"num_epochs": 3}, {}),
    "gradient_accumulation": ({"batch_size": 8}, {"gradient_accumulation_steps": 2}),
    "memory": ({}, {}),
    "multi_process_metrics": ({}, {}),
    "profiler": ({}, {"record_shapes": False, "profile_memory": False, "with_flops": False, "output_trace_dir": None}),
    "schedule_free": ({}, {}),
    "tracking": ({}, {"with_tracking": True, "project_dir": "logs"}),
}
REFUSED = {
    "ddp_comm_hook": (
        {},
        {"ddp_comm_hook": "fp16", "ddp_comm_wrapper": "no", "gradient_accumulation_steps": 1},
        "communication-hook",
    ),
    "local_sgd": ({}, {"local_sgd_steps": 2, "gradient_accumulation_steps": 1}, "local-sgd"),
    "gradient_accumulation_for_autoregressive_models": (
        {"max_grad_norm": 1.0},
        {"gradient_accumulation_steps": 1, "with_wandb_tracking": False},
        "value-before-backward",
    ),
}


# The profiler's own work takes half a minute.
SLOW = {"profiler"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.longest] if name in SLOW else []) for name in RUN])
def test_an_example_is_the_same_on_any_number_of_processes(nest, tmp_path, name):
    if "cv" in name:
        from offline import make_images

        make_images(tmp_path / "images")
    found = {}
    for processes in (1, 2, 3):
        statuses, results = nest.run(processes, "runs_example", "run_example", [name, *RUN[name]], tmp_path)
        assert statuses == [0] * processes, (tmp_path / "log-0").read_text()[-3000:]
        (printed, digests), *others = results
        assert all(result == [[], digests] for result in others)
        assert digests
        assert len(printed) >= 2
        found[processes] = printed, digests
    print(name, found[1])
    assert found[1] == found[2] == found[3]


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_number_of_processes_is_refused(nest, tmp_path, name):
    config, options, code = REFUSED[name]
    for processes in (1, 2):
        assert nest.run(processes, "runs_example", "refused", [name, config, options], tmp_path) == (
            [0] * processes,
            [code] * processes,
        )
    print((tmp_path / "log-0").read_text()[-1500:])
