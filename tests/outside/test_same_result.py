"""Under ``lockstep run`` a script has the result that it has under the launcher it was written
for."""

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

TWO = ("--nproc-per-node", "2")


@pytest.mark.longest
@pytest.mark.parametrize(("script", "args"), [("spmd.py", ("--local_world_size=2",)), ("launched.py", ())])
def test_a_script_of_torch_distributed_launch_as_there(lockstep_run, torchrun, here, script, args):
    ours = lockstep_run(*TWO, script, *args)
    # as PyTorch 2 passes it
    source = (here / script).read_text().replace('"--local_rank"', '"--local-rank"')
    (here / script).write_text(source)
    theirs = torchrun(*TWO, script, *args, module="torch.distributed.launch")
    assert ours == theirs
    assert len(ours) == 2


@pytest.mark.longest
def test_imagenet_as_under_torchrun_and_as_it_spawns_itself(lockstep_run, torchrun, start, free_port):
    expected = torchrun(*TWO, "imagenet.py")
    assert len(expected) == 2
    assert lockstep_run(*TWO, "imagenet.py") == expected
    tcp = f"tcp://127.0.0.1:{free_port}"
    spawning = ("imagenet.py", "--multiprocessing-distributed", "--world-size", "1", "--rank", "0", "--dist-url", tcp)
    assert lockstep_run(*spawning) == expected
    assert start(*spawning) == expected
