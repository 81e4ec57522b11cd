"""What a launch that resumes would not do again is said when it happens, not when the run is to
resume and is refused."""

import pytest
from interrupted_scripts import BEGIN, HEAD

pytestmark = pytest.mark.timeout(90)

LOADER_OF_EACH_EPOCH = """
model, optimizer = team.prepare(model, optimizer)
for epoch in {loop}:
    rows = torch.randperm(60)[:40].tolist()
    batches = team.prepare(DataLoader([sample(row) for row in rows], batch_size=8, shuffle=True))
    for batch in batches:
        learn(model, optimizer, batch)
say_last_words(team, model, optimizer)
"""
GROUP_ADDED = """
model, optimizer, batches = team.prepare(model, torch.optim.SGD(model[0].parameters(), lr=0.1), samples())
for epoch in team.epochs(3):
    if epoch == 1:
        optimizer.add_param_group({"params": model[-1].parameters(), "lr": 0.01})
    for batch in batches:
        learn(model, optimizer, batch)
say_last_words(team, model, optimizer)
"""
WARNINGS = {
    LOADER_OF_EACH_EPOCH.format(loop="team.epochs(3)"): "this DataLoader is prepared inside",
    GROUP_ADDED: "optimizer (SGD) has changed",
}


def told(ended, words):
    return [line for line in ended.err.splitlines() if "WARNING: " + words in line]


@pytest.mark.parametrize(("body", "words"), WARNINGS.items(), ids=["loader of each epoch", "group added"])
def test_what_cannot_be_resumed_is_said_once_where_checkpoints_are_saved(lab, body, words):
    script = HEAD + BEGIN + body
    fault = {"at": "step", "number": 13, "what": "kill", "first": 1}
    assert len(told(lab.run(script, nproc=2, fault=fault, checkpoint_every=11), words)) == 1
    refused = lab.run(script)
    assert refused.status == 1, refused
    assert "MismatchError" in refused.err, refused
    assert not told(lab.run(script, run_dir="another", checkpoint_every="off"), words)


def test_in_a_range_a_loader_of_each_epoch_can_be_resumed_and_nothing_is_said(lab, undisturbed):
    script = HEAD + BEGIN + LOADER_OF_EACH_EPOCH.format(loop="range(3)")
    killed = lab.run(script, nproc=2, fault={"at": "step", "number": 9, "what": "kill", "first": 1}, checkpoint_every=7)
    ended = lab.run(script)
    assert lab.resumes() == [7], f"{killed}\n{ended}"
    assert ended.words == undisturbed(script), f"{killed}\n{ended}"
    assert "WARNING" not in killed.err, killed
