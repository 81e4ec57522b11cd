"""What a script gives to join() is read before anything is started, as far as its text tells."""

import textwrap

import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._launch.joins import joining_of
from lockstep._launch.options import LaunchOptions
from lockstep._launch.script import run_script
from lockstep._launch.source import Source
from lockstep._tools.slurm.request import Request

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def read(tmp_path):
    def make(text):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return joining_of(Source.read(path))

    return make


@pytest.mark.parametrize(
    "text",
    [
        "import lockstep\nteam = lockstep.join(shards=6, seed=len('a'), **more)",
        "from lockstep import join\nteam = join(shards=6, rank=0, world_size=2)",
        "import lockstep as ls\ndef main():\n    return ls.join(shards=6)\nif __name__ == '__main__':\n    main()",
        "import lockstep\nif __name__ == '__main__':\n    with open('log'):\n        lockstep.join(shards=6)",
        "import sys, lockstep\ndef main():\n    with lockstep.join(shards=6):\n        return 0\nsys.exit(main())",
        "import lockstep\ndef begin():\n    return lockstep.join(shards=6)\ndef main():\n    team = begin()\nmain()",
    ],
)
def test_constants_in_the_only_call_are_known(read, text):
    assert read(text).settings == {"shards": 6}


@pytest.mark.parametrize(
    "text",
    [
        "import lockstep\nteam = lockstep.join(shards=args.shards)",
        "import lockstep\nif small:\n    team = lockstep.join(shards=6)",
        "import lockstep\nteam = lockstep.join(shards=6) if small else None",
        "import lockstep\ntry:\n    team = lockstep.join(shards=6)\nexcept ValueError:\n    team = lockstep.join()",
        "import lockstep\nlockstep.join(shards=6).close()\nlockstep.join(shards=8)",
        "def join(shards): ...\njoin(shards=6)",
        "import lockstep\ndef never():\n    lockstep.join(shards=6)",
        "import lockstep\nclass Trainer:\n    def fit(self):\n        lockstep.join(shards=6)\nTrainer().fit()",
        "import lockstep\ndef train():\n    lockstep.join(shards=6)\nif args.train:\n    train()",
        "import sys, lockstep\nif args.dry:\n    sys.exit()\nlockstep.join(shards=6)",
        "import lockstep\ndef check():\n    if bad:\n        raise SystemExit\ncheck()\nlockstep.join(shards=6)",
        "import lockstep\ndef main():\n    if args.evaluate:\n        return\n    lockstep.join(shards=6)\nmain()",
        "import lockstep\nfor n in ():\n    lockstep.join(shards=6)",
        "import contextlib, lockstep\nwith contextlib.suppress(ValueError):\n    lockstep.join(shards=6)",
        "import lockstep\nbegin = lambda: lockstep.join(shards=6)",
        "print('-'.join(x))",
    ],
)
def test_nothing_is_known_of_what_may_be_otherwise(read, text):
    assert read(text).settings == {}


@pytest.mark.parametrize(
    ("call", "settings", "words"),
    [
        ("shards=1", {}, ["2 processes", "1 shard", "shards=2", "train.py, line 2"]),
        ("shard=4", {}, ["'shard'", "'shards'", "train.py, line 2"]),
        ("strategy='single'", {}, ["strategy single", "2"]),
        ("precision='fp8'", {}, ["precision 'fp8'", "train.py, line 2"]),
        ("seed=1", {"seed": 2}, ["seed", "1", "2", "train.py, line 2"]),
    ],
)
def test_run_refuses_what_join_would_before_a_process_is_started(tmp_path, monkeypatch, call, settings, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"import lockstep\nlockstep.join({call})\nopen('started', 'w')\n")
    with pytest.raises(ConfigError) as caught:
        run_script("train.py", (), LaunchOptions(nproc_per_node="2"), settings)
    assert [word for word in words if word not in str(caught.value)] == []
    assert not (tmp_path / "started").exists()


def test_a_job_of_more_processes_than_the_script_has_shards_is_not_written(read):
    joining = read("import lockstep\nlockstep.join(shards=6)")
    with raises(ConfigError, "world-size-above-shards") as caught:
        Request(script="train.py", nodes=2, ntasks_per_node=8, joining=joining)
    assert [name for name in ("16", "shards=6", "train.py, line 2") if name not in str(caught.value)] == []
    assert Request(script="train.py", nodes=2, ntasks_per_node=3, joining=joining).tasks == 3
