"""What lockstep needs of the installed accelerate, and what it refuses. This fails first if
accelerate moves."""

import inspect

import pytest
import torch
from accelerate import Accelerator as Plain
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin, GradScalerKwargs, ProfileKwargs
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep.integrations.accelerate import Accelerator
from lockstep.integrations.accelerate import _host as host
from lockstep.integrations.accelerate import _settings as settings


def test_accelerate_has_what_lockstep_needs():
    host.check_host()
    for kind, names in {
        AcceleratorState: ["_from_accelerator", "dynamo_plugin", "mixed_precision"],
        PartialState: ["cpu"],
    }.items():
        found = inspect.signature(kind.__init__).parameters
        assert set(names) <= set(found), (
            f"accelerate's {kind.__name__}() has other arguments: adapt host.enter_single_process"
        )


def test_optimizers_of_accelerate_step_where_lockstep_says_so():
    PartialState(cpu=True)
    AcceleratorState(
        cpu=True, mixed_precision="no", _from_accelerator=True, dynamo_plugin=host.TorchDynamoPlugin(backend="no")
    )
    try:
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=1.0), device_placement=False)
        weight.grad = torch.ones(1)
        host.set_sync_gradients(False)
        optimizer.step()
        optimizer.zero_grad()
        assert weight.item() == 0
        host.set_sync_gradients(True)
        optimizer.step()
        assert weight.item() == -1, "accelerate's optimizers read another flag: adapt host.set_sync_gradients"
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()


def test_each_public_name_of_accelerate_is_there_or_refused_with_a_reason():
    names = {name for name in dir(Plain) if not name.startswith("_")}
    own = {name for kind in Accelerator.__mro__ for name in vars(kind)} | {"trackers", "project_configuration"}
    unheard = {
        "data_parallel_rank", "data_parallel_shard_rank", "deepspeed_ulysses_dl_adapter", "fp8_backend", "is_fsdp2",
        "is_composable_parallelism_enabled", "non_blocking", "on_local_process", "on_process", "parallelism_config",
        "register_load_state_pre_hook", "register_save_state_pre_hook", "save_iteration", "should_save_model",
        "torch_device_mesh", "use_seedable_sampler", "use_stateful_dataloader", "verify_device_map",
    }  # fmt: skip
    made = {"device", "distributed_type", "mixed_precision"}
    assert names - own - made - set(Accelerator.REFUSED) == unheard


@pytest.mark.parametrize(
    "arguments",
    [{"fsdp_plugin": FullyShardedDataParallelPlugin}, {"deepspeed_plugin": dict}, {"dynamo_backend": lambda: "inductor"}],
    ids=lambda arguments: next(iter(arguments)),
)
def test_other_ways_to_train_in_parallel_are_refused(arguments):
    with raises(ConfigError, "argument-of-accelerator"):
        settings.refuse({name: make() for name, make in arguments.items()})


def test_of_the_handlers_only_those_that_change_no_result_are_taken():
    profile = ProfileKwargs(record_shapes=True)
    assert settings.profile_of([DistributedDataParallelKwargs(find_unused_parameters=True), profile]) is profile
    with raises(ConfigError, "communication-hook"):
        settings.profile_of([DistributedDataParallelKwargs(comm_hook="fp16")])
    with raises(ConfigError, "handler-of-accelerator"):
        settings.profile_of([GradScalerKwargs()])
    with raises(ConfigError, "precision-of-accelerator"):
        settings.precision_of("fp16")
