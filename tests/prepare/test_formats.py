"""Each precision keeps what it keeps in the formats that docs/precision.md says, on every rank."""

from pathlib import Path

import format_scripts
import pytest
import torch
from torch import nn
from torch.nn import functional

import lockstep
from lockstep._base.config import PRECISIONS
from lockstep._base.errors import LaunchError
from lockstep._prepare.precision import find_precision

pytestmark = [pytest.mark.timeout(90), pytest.mark.quick]

# By precision: parameters between the passes (gradients and the optimizer's state are alike), the
# BatchNorm's weights in them, those of other layers, what layers give, and the buffers of BatchNorm
# and of others.
EXPECTED = {
    "32-true": ("float32", "float32", "float32", "float32", "float32", "float32"),
    "16-mixed": ("float32", "float32", "float32", "float16", "float32", "float32"),
    "16-master": ("float32", "float32", "float16", "float16", "float32", "float16"),
    "16-true": ("float16",) * 6,
    "bf16-mixed": ("float32", "float32", "float32", "bfloat16", "float32", "float32"),
    "bf16-true": ("bfloat16",) * 6,
}


def test_every_precision_has_a_row():
    assert set(EXPECTED) == set(PRECISIONS)
    assert [find_precision(name).name for name in PRECISIONS] == list(PRECISIONS)


def test_the_table_of_the_documentation_says_the_same():
    page = (Path(__file__).parents[2] / "docs" / "precision.md").read_text()
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    table = {name: (weights, norms, passes, state, scaled) for name, _, weights, norms, passes, state, scaled in cells[1:7]}
    assert list(table) == list(PRECISIONS)
    for name, (weights, norms, passes, state, scaled) in table.items():
        kept, norm, _, computed, _, _ = EXPECTED[name]
        assert (weights, norms, state) == (kept, norm, kept)
        assert passes.startswith(computed)
        assert (scaled == "yes") == find_precision(name).scales_loss


@pytest.mark.parametrize("precision", EXPECTED)
@pytest.mark.parametrize(("strategy", "nproc"), [("single", 1), ("exact", 2)])
def test_weights_passes_gradients_and_state_are_in_the_formats_of_the_precision(standing_crew, precision, strategy, nproc):
    kept, norm, layer, computed, statistics, buffer = EXPECTED[precision]
    for seen in standing_crew(nproc, format_scripts.where_what_is, precision=precision, strategy=strategy, shards=2):
        assert (seen["parameters"], seen["gradients"], seen["state"]) == ([kept], [kept], [kept])
        assert (seen["statistics"], seen["buffer"], seen["outputs"]) == ([statistics], [buffer], ["float32"])
        in_passes = seen["in passes"]
        assert (in_passes["norm.weight"], in_passes["norm.bias"]) == (norm, norm)
        assert {in_passes[name] for name in ("first.weight", "first.bias", "last.0.weight", "last.1.weight")} == {layer}
        assert in_passes["inputs"] == ("float32" if precision.endswith("mixed") else layer)
        # there PyTorch chooses; the sum with a float32 buffer is float32
        if not precision.endswith("mixed"):
            assert in_passes["hidden"] == computed
        assert seen["same in evaluation"]


@pytest.mark.parametrize("precision", EXPECTED)
def test_pytorchs_ddp_reduces_while_the_backward_pass_runs_in_every_precision(standing_crew, precision):
    for launched in standing_crew(2, format_scripts.kinds_of_reduction, precision=precision, strategy="ddp", shards=2):
        assert launched[0] == 0
        assert all(number > 0 for number in launched[1:])


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("precision", ["16-master", "bf16-true"])
def test_an_average_of_16_bit_weights_stays_in_float32(standing_crew, precision, use_buffers):
    for kept, is_right in standing_crew(2, format_scripts.averaged, use_buffers, precision=precision, shards=2):
        assert (kept, is_right) == (["float32"], True)


@pytest.mark.parametrize(("then", "first"), [("nothing", [False, True]), ("clip", [False, True]), ("clear", [True, True])])
def test_the_step_of_an_optimizer_whose_gradients_have_overflowed_is_skipped(standing_crew, then, first):
    for changes in standing_crew(2, format_scripts.overflowed, then, precision="16-mixed", shards=2):
        assert changes == [[one, True] for one in first * 2]


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_an_optimizer_with_a_state_goes_on_in_the_format_of_its_parameters(standing_crew, precision):
    [kept] = standing_crew(1, format_scripts.resumed_state, precision=precision, shards=1)
    assert kept == ["float16" if precision == "16-true" else "bfloat16"]


@pytest.mark.parametrize(
    ("what", "precision", "said"),
    [
        ("eps", "16-true", r"AdamW\(eps=1e-08\) with precision='16-true'"),
        ("scaler", "16-mixed", "a GradScaler with precision='16-mixed'"),
        ("scaler", "16-master", "a GradScaler with precision='16-master'"),
        ("scaler", "16-true", "a GradScaler with precision='16-true'"),
    ],
)
def test_what_cannot_work_is_named_with_the_remedy(crew, what, precision, said):
    with pytest.raises(LaunchError, match=said):
        crew(1, format_scripts.refused, what, precision=precision)


@pytest.fixture
def team(tmp_path):
    with lockstep.join(run_dir=str(tmp_path / "run"), device="cpu", precision="16-master", progress="off") as team:
        yield team


def test_weights_that_layers_share_are_shared_in_passes_too(team):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 4)
            self.outer.weight = self.inner.weight

        def forward(self, x):
            self.shared = self.inner.weight is self.outer.weight
            return self.outer(self.inner(x))

    model = team.prepare(Tied())
    model(torch.ones(2, 4)).sum().backward()
    assert model.shared
    assert model.inner.weight is model.outer.weight
    assert isinstance(model.inner.weight, nn.Parameter)
    assert model.inner.weight.grad.dtype == torch.float32


def test_what_a_backward_pass_computes_again_is_computed_in_16_bits_again(standing_crew):
    [(outputs, gradients, are_equal)] = standing_crew(1, format_scripts.computed_again, precision="16-master", shards=2)
    assert ({*outputs}, gradients, are_equal) == ({"float32"}, ["float32"], True)


def test_parts_called_by_name_are_those_of_float32_and_16_bits_in_teams_autocast(team):
    model = team.prepare(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    assert model[0](torch.ones(1, 2)).dtype == torch.float32
    with team.autocast():
        assert model[0](torch.ones(1, 2)).dtype == torch.float16


def test_a_forward_pass_that_fails_leaves_the_weights_as_they_were(team):
    class Failing(nn.Linear):
        def forward(self, x):
            raise KeyError("on purpose")

    model = team.prepare(Failing(2, 2))
    with pytest.raises(KeyError):
        model(torch.ones(1, 2))
    assert isinstance(model.weight, nn.Parameter)
    assert model.weight.dtype == torch.float32


LAYERS = {
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (3, 5, 8)),
    "LSTM": (lambda: nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True), (3, 5, 8)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 8, 8)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), (3, 8)),
}


@pytest.mark.long
@pytest.mark.parametrize("precision", ["16-master", "bf16-true"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_all_kinds_give_nearly_what_they_give_in_float32(tmp_path, layer, precision):
    make, shape = LAYERS[layer]
    torch.manual_seed(0)
    plain, x = make(), torch.randn(shape)
    torch.manual_seed(0)
    with lockstep.join(run_dir=str(tmp_path / "run"), device="cpu", precision=precision, progress="off", seed=1) as team:
        narrow = make()
        narrow.load_state_dict(plain.state_dict())
        narrow = team.prepare(narrow)
        for mode in (True, False):
            results = []
            for model in (plain.train(mode), narrow.train(mode)):
                outputs = model(x)
                outputs = outputs[0] if isinstance(outputs, tuple) else outputs
                model.zero_grad()
                outputs.square().sum().backward()
                results.append((outputs.detach(), torch.cat([p.grad.float().flatten() for p in model.parameters()])))
            (expected, gradient), (found, narrow_gradient) = results
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
            assert functional.cosine_similarity(gradient, narrow_gradient, 0) > 0.98
