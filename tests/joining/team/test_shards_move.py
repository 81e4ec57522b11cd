"""Shards move away from a rank that is slow, and nobody can tell from the weights."""

import json
from pathlib import Path

import balance_scripts
import pytest
from balance_scripts import NUM_EPOCHS

from lockstep._cli.main import main

pytestmark = pytest.mark.timeout(150)


def digests(seen):
    return {step: digest for step, (digest, _) in seen.items()}


def moves_of(run_dir):
    events = [json.loads(line) for line in (Path(run_dir) / "events.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "move"]


def test_a_slow_rank_gets_fewer_shards_until_the_run_resumes(standing_crew, tmp_path, capsys):
    settings = {"shards": 8, "checkpoint_every": "1h", "run_dir": str(tmp_path / "run")}
    [alone] = standing_crew(1, balance_scripts.train, 0, NUM_EPOCHS, shards=8)
    fast, slow = standing_crew(2, balance_scripts.train, 3, NUM_EPOCHS, True, **settings)
    last = max(slow)
    assert slow[1][1] == fast[1][1] == 4
    assert slow[last][1] < 4 < fast[last][1]
    [move] = moves_of(tmp_path / "run")
    assert move["step"] == min(step for step, (_, number) in slow.items() if number != 4)
    assert (move["before"], move["shards"]) == ([4, 4], [fast[last][1], slow[last][1]])
    with pytest.raises(SystemExit):
        main(["runs", str(tmp_path / "run")])
    assert f"rank 1: {slow[last][1]} instead of 4" in capsys.readouterr().out
    resumed = standing_crew(2, balance_scripts.train, 0, last // 4 + 2, allow=["epochs"], **settings)
    assert [seen[last + 1][1] for seen in resumed] == [4, 4]
    for seen in resumed:
        assert digests(alone).items() >= {**digests(fast), **digests(seen)}.items()
    assert digests(fast) == digests(slow)
