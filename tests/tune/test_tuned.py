"""The file of ``lockstep tune``: what it holds does not change a bit, and it holds only where it was measured."""

import dataclasses
import hashlib
import json

import pytest

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError
from lockstep.plan.loading import Loading
from lockstep.tools.tune.instrument import TuneOptions, Tuning
from lockstep.tools.tune.tuned import Situation, Tuned, fit, read
from lockstep.world.machine.cores import num_cores

pytestmark = pytest.mark.timeout(100)

# Augmented samples, drawn from the random streams of torch, NumPy and random; an evaluation; a second loader.
SCRIPT = """
import random, sys, numpy, torch, lockstep
from torch.utils.data import DataLoader, Dataset
class Drawn(Dataset):
    def __len__(self):
        return 56
    def __getitem__(self, index):
        return torch.randn(6) + index / 50 + random.random() + numpy.random.rand(), torch.rand(1)
team = lockstep.join(shards=4, threads=1, progress="off")
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader, other = team.prepare(
    model, optimizer, DataLoader(Drawn(), 16, shuffle=True), DataLoader(Drawn(), 16)
)
for epoch in team.epochs(2):
    for batch, beside in zip(loader, other):
        for (x, y), (z, _) in zip(batch.shards, beside.shards):
            team.backward((model(x) + model(z) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    with team.evaluate(model, DataLoader(Drawn(), 8)) as evaluation:
        for batch in evaluation:
            for x, y in batch.shards:
                batch.add(loss=(model(x) - y).square().mean())
from lockstep.base.digest import digest
team.print("workers", loader.num_workers, other.num_workers, loader.prefetch_factor, loader.pin_memory)
team.print("digest", digest([model.state_dict(), optimizer.state_dict(), evaluation["loss"]]))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path / "script.py"


@pytest.fixture
def write(tmp_path, script):
    """``write(loading, **situation)``: a file as lockstep tune would write it for ``script.py`` here."""

    def write(loading, **changes):
        situation = Situation(
            script=str(script.resolve()),
            script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(),
            num_cores=num_cores(),
            local_world_size=1,
            world_size=1,
            device="cpu",
        )
        Tuned(situation=dataclasses.replace(situation, **changes), loader=1, loading=loading).write(tmp_path / "tuned.json")
        return "tuned.json"

    return write


def said(done, word):
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith(word))


def test_no_bit_of_the_answer_depends_on_what_a_tuned_file_holds(run_here, script, write):
    digests = set()
    for nproc, loading, told in (
        (1, None, "workers 0 0 None False"),
        (1, Loading(workers=2, prefetch=5, pin=True), "workers 2 0 5 True"),
        (2, Loading(workers=1), "workers 1 0 2 False"),
        (2, Loading(), "workers 0 0 None False"),
    ):
        tuned = () if loading is None else ("--tuned", write(loading, local_world_size=nproc, world_size=nproc))
        done = run_here(script, "--fresh", "--nproc", str(nproc), *tuned)
        assert said(done, "workers") == told
        digests.add(said(done, "digest"))
    assert len(digests) == 1


def test_the_run_says_what_it_applies_and_that_the_script_has_changed_since(run_here, script, write):
    name = write(Loading(workers=2, prefetch=5))
    assert (
        "lockstep: tuned: 2 workers, each 5 batches ahead for loader 1 (tuned.json)"
        in run_here(script, "--tuned", name).stdout
    )
    script.write_text(SCRIPT + "\n# edited\n")
    assert "the script has changed since" in run_here(script, "--fresh", "--tuned", name).stdout


def test_elsewhere_it_is_not_applied_and_that_is_said(run_here, script, write):
    done = run_here(script, "--tuned", write(Loading(workers=2), num_cores=64))
    assert said(done, "workers") == "workers 0 0 None False"
    assert f"not applied, because it was measured elsewhere (cores: 64 then, {num_cores()} now)" in done.stdout
    done = run_here(script, "--fresh", "--nproc", "2", "--tuned", write(Loading(workers=2)))
    assert "processes: 1 then, 2 now" in done.stdout


def test_for_another_script_it_is_refused_before_anything_is_written(run_here, script, write, tmp_path):
    name = write(Loading(workers=2), script="/elsewhere/other.py", script_sha256="0" * 64)
    done = run_here(script, "--tuned", name)
    assert done.returncode != 0
    assert "was measured for /elsewhere/other.py" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_copy_of_the_script_at_another_place_is_the_same_script():
    then = Situation(script="/a/x.py", script_sha256="1", num_cores=2, local_world_size=1, world_size=1, device="cpu")
    tuned = Tuned(situation=then, loader=1, loading=Loading(workers=2))
    assert fit(tuned, dataclasses.replace(then, script="/b/x.py"), "f")[0] == tuned
    with pytest.raises(ConfigError, match=r"measured for /a/x\.py, but this is /b/x\.py"):
        fit(tuned, dataclasses.replace(then, script="/b/x.py", script_sha256="2"), "f")


def test_other_arguments_of_the_script_are_said():
    then = Situation(script="x.py", script_sha256="1", num_cores=2, local_world_size=1, world_size=1, device="cpu")
    tuned = Tuned(situation=dataclasses.replace(then, args=["--data", "small"]), loader=1, loading=Loading(workers=2))
    applied, line = fit(tuned, dataclasses.replace(then, args=("--data", "all")), "f")
    assert applied == tuned
    assert "it was measured with --data small, so measure again" in line
    assert "measured" not in fit(tuned, dataclasses.replace(then, args=("--data", "small")), "f")[1]


def test_workers_given_by_hand_and_a_tuned_file_contradict_each_other():
    tuning = Tuning()
    tuning.options = TuneOptions(tuned="t.json")
    with pytest.raises(ConfigError, match=r"workers=2 and tuned='t\.json' both set the loader workers"):
        tuning.settings(RunConfig(workers=2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as a file of lockstep tune"),
        ("[]", "is not a file of lockstep tune"),
        ('{"kind": "lockstep tune", "format": 7}', "has format 7"),
        ('{"kind": "lockstep tune", "format": 1}', "cannot be read as a file of lockstep tune"),
        (None, "cannot be read: .*No such file"),
        ({"workers": -1}, "workers is -1"),
        ({"prefetch": "4"}, "prefetch is '4'"),
        ({"pin": 1.5}, "pin is 1.5"),
    ],
)
def test_a_file_that_is_none_is_refused_in_words(tmp_path, write, content, message):
    path = tmp_path / "tuned.json"
    if isinstance(content, dict):
        write(Loading())
        whole = json.loads(path.read_text())
        content = json.dumps({**whole, "loading": {**whole["loading"], **content}})
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read(path)


def test_a_file_of_another_kind_is_never_replaced(tmp_path, write):
    (tmp_path / "tuned.json").write_text("my notes")
    with pytest.raises(ConfigError, match="cannot be read as a file of lockstep tune"):
        write(Loading())
    assert (tmp_path / "tuned.json").read_text() == "my notes"
