"""``lockstep verify`` finds no difference in a script with Trainer."""

import json

import made
import pytest
from launchers import warm_trials
from nursery import Nursery
from warm_trainer import ENVIRONMENT, on_lockstep

from lockstep._cli.main import main

__all__ = ["warm_trials"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.usefixtures("require_transformers", "warm_trials")]
ARGS = """--config_name data/tiny --tokenizer_name data/tiny --train_file data/train.txt --validation_file data/validation.txt
--do_train --per_device_train_batch_size 12 --num_train_epochs 2 --report_to none --use_cpu --disable_tqdm True
--shards 4 --output_dir out"""


@pytest.fixture(scope="module")
def nursery(outlives_tests):
    """Launchers whose workers have imported transformers."""
    made = Nursery(imports=("datasets", "transformers.trainer", "transformers.models.gpt2.modeling_gpt2"))
    outlives_tests(made.pid)
    yield made
    made.close()


def test_a_script_is_verified_on_two_numbers_of_processes_and_after_a_kill(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "data").mkdir()
    made.language_model(tmp_path / "data")
    script = on_lockstep("clm.py", tmp_path)
    args = [arg.replace("data/", f"{tmp_path}/data/") for arg in ARGS.split()]
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--world-sizes", "1,2", "--launchers", "local", "--no-one-device", str(script), *args])
    assert not ended.value.code, capfd.readouterr()
    settings = json.loads((tmp_path / "verification" / "results.json").read_text())["settings"]
    assert {setting["status"] for setting in settings} == {"ok"}
    assert [bool(setting["killed_at"]) for setting in settings] == [False, False, True, True]
