"""A run resumes in another precision, if that is allowed: its state becomes what it is in that one."""

import pytest
from laboratory import PLAIN

from lockstep.state.checkpoint.manifest import Manifest
from lockstep.state.checkpoint.store import Store
from lockstep.state.checkpoint.weights import Tensors, load_weights

pytestmark = pytest.mark.timeout(90)

ARGUMENT = "optimizer=Rprop"  # it has state, and does not divide by a number that is 0 in float16
KEPT = {"16-true": "torch.float16", "bf16-true": "torch.bfloat16"}
PAIRS = [
    ("32-true", "16-mixed"),  # a scaler comes
    ("32-true", "bf16-true"),  # weights become narrower
    ("16-true", "32-true"),  # wider
    ("16-mixed", "16-master"),  # copies come
    ("16-master", "32-true"),  # copies and a scaler go
    ("bf16-true", "16-master"),
]


@pytest.mark.parametrize(("was", "becomes"), PAIRS)
def test_an_allowed_precision_goes_on_from_the_same_step_in_its_formats(lab, interrupted, was, becomes):
    interrupted(lab.run_dir, ARGUMENT, precision=was)
    newest = int(lab.names()[0].removeprefix("step-"))
    ended = lab.run(PLAIN, ARGUMENT, precision=becomes, allow=["precision"], nproc=2)
    assert ended.status == 0, ended
    assert lab.resumes() == [newest], ended
    assert ended.words["step"] == 15, ended
    [last, *_] = Store(lab.run_dir).all()
    manifest = Manifest.read(last)
    assert manifest.birth["precision"] == becomes
    assert [record["kind"] for record in manifest.objects if record["kind"] == "scaler"] == ["scaler"] * (
        becomes in ("16-mixed", "16-master")
    )
    kept = {str(tensor.dtype) for name, tensor in load_weights(last).items() if "num_batches" not in name}
    assert kept == {KEPT.get(becomes, "torch.float32")}
    state = Tensors([last / name for name in manifest.files if name.startswith("state-")])
    assert {str(tensor.dtype) for tensor in state.values() if tensor.is_floating_point() and tensor.ndim} == kept
    # The run is now one of this precision, whatever it was born with.
    ended = lab.run(PLAIN, ARGUMENT, precision=was)
    assert ended.status == 1, ended
    assert f"precision is {was!r} now, and was {becomes!r}" in ended.err, ended
    ended = lab.run(PLAIN, ARGUMENT, precision=becomes)
    assert ended.status == 0, ended
