"""A script that trains several runs, one after the other, resumes each of them where it was."""

import json

import pytest

pytestmark = pytest.mark.timeout(120)

TRAIN = """
import json, os, torch, lockstep
found = []
for number in range(3):
    with lockstep.join(checkpoint_every=1, shards=2) as team:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1 * (number + 1))
        data = torch.utils.data.TensorDataset(torch.randn(8, 1))
        model, optimizer, loader = team.prepare(model, optimizer, torch.utils.data.DataLoader(data, 2))
        steps = []
        for _ in team.epochs(1):
            for batch in loader:
                steps.append(team.step)
                for (x,) in batch.shards:
                    team.backward(model(x).mean())
                optimizer.step()
                optimizer.zero_grad()
                if os.environ.get("FAILS_IN") == f"{number} {team.step}":
                    assert team._engine.saver.wait_until_written()
                    raise SystemExit(3)
        found.append((team.run_dir.name, steps, model.weight.item()))
if team.is_main:
    print("FOUND", json.dumps(found))
"""


def found_by(ended):
    [line] = [line for line in ended.stdout.splitlines() if "FOUND" in line]
    return json.loads(line.partition("FOUND")[2])


def test_each_run_of_a_script_is_resumed_by_its_own_place_in_the_script(run_here):
    ended = run_here(TRAIN, "--nproc-per-node", 1, env={"FAILS_IN": "1 3"})
    assert ended.returncode == 3
    first, second, third = found_by(run_here(TRAIN, "--nproc-per-node", 2))
    # The first run has finished and begins again, as that of any script does; the second goes on.
    assert [name for name, *_ in (first, second, third)] == ["script-3", "script-2", "script-4"]
    assert first[1] == third[1] == [1, 2, 3, 4]
    assert second[1] in ([2, 3, 4], [3, 4], [4])
    whole = found_by(run_here(TRAIN, "--nproc-per-node", 1, "--fresh"))
    assert [weight for *_, weight in whole] == [weight for *_, weight in (first, second, third)]
