"""What a script wants of its launcher is read off its source, without importing anything."""

import textwrap

import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._launch.options import LaunchOptions
from lockstep._launch.program import check_script, check_starter
from lockstep._launch.source import Source


@pytest.fixture
def read(tmp_path):
    """``read(source, {"name.py": source_of_another_file})``: the script, among other files."""

    def make(source, others=None):
        for name, text in {"train.py": source, **(others or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return Source.read(tmp_path / "train.py")

    return make


def check(source, **options):
    return check_script(str(source.path), source, (), LaunchOptions(**options))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("parser.add_argument('--local_rank', type=int)", "--local_rank"),
        ("parser.add_argument('--local-rank', type=int)", "--local-rank"),
        ("parser.add_argument('-l', '--local-rank', '--local_rank')", "--local-rank"),
        ("@click.option('--local_rank', default=0)\ndef main(local_rank): ...", "--local_rank"),
        ("rank = typer.Option(-1, '--local_rank')", "--local_rank"),
        ("found = [a for a in sys.argv if a.startswith('--local_rank=')]", "--local_rank"),
        ("is_told = '--local-rank' in sys.argv", "--local-rank"),
        ("parser.add_argument('--local_rank', action='store_true', help='show places in each machine')", None),
        ("subprocess.Popen([sys.executable, 'worker.py', '--local_rank', str(rank)])", None),
        ("command += ['--local_rank=0']", None),
        ("parser.add_argument('--rank', help='not --local_rank')", None),
        ("local_rank = int(os.environ['LOCAL_RANK'])", None),
    ],
)
def test_an_argument_for_the_local_rank_is_found_where_it_is_defined(read, tmp_path, source, expected):
    found = read(source).local_rank_option()
    assert found == (expected and (expected, f"{tmp_path}/train.py, line 1"))


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("import options", "options.py"),
        ("from options import parse", "options.py"),
        ("from tools import options", "tools/options.py"),
        ("from tools import parse", "tools/__init__.py"),
        ("from .options import parse", "options.py"),
        ("from . import options", "options.py"),
    ],
)
def test_the_argument_is_found_in_files_beside_the_script_that_it_imports(read, tmp_path, line, where):
    source = read(line, {where: "\n\nparser.add_argument('--local_rank')"})
    assert source.local_rank_option() == ("--local_rank", f"{tmp_path}/{where}, line 3")


def test_arguments_of_files_that_are_not_imported_do_not_count(read):
    source = read("from missing import x", {"x.py": "parser.add_argument('--local_rank')"})
    assert source.local_rank_option() is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)", "torch.multiprocessing.spawn"),
        ("from torch import multiprocessing\nmultiprocessing.spawn(f)", "torch.multiprocessing.spawn"),
        ("from torch.multiprocessing import spawn as go\ngo(f)", "torch.multiprocessing.spawn"),
        ("import torch.multiprocessing as mp\nmp.start_processes(f)", "torch.multiprocessing.start_processes"),
        ("import lockstep\nlockstep.launch(f, nproc=2)", "lockstep.launch"),
        (
            "from multiprocessing import Process\ndist.init_process_group('gloo', rank=r, world_size=2)\nProcess(target=f)",
            "multiprocessing.Process",
        ),
    ],
)
def test_a_script_that_starts_its_processes_is_recognised(read, tmp_path, source, name):
    found = read(source).starter()
    assert found == f"{name} in {tmp_path}/train.py, line {source.count(chr(10)) + 1}"


@pytest.mark.parametrize(
    "source",
    [
        "import multiprocessing as mp\nmp.Process(target=write_logs).start()\ndist.init_process_group('nccl')",
        "import psutil\ndist.init_process_group('nccl', rank=r)\npsutil.Process()",
        "game.spawn(enemy)",
        "import multiprocessing.spawn",
        "with mp.Pool(4) as pool: pool.map(f, range(9))",
        "import lockstep, torch.multiprocessing as mp\nmp.spawn(prepare_data, nprocs=4)\nteam = lockstep.join()",
        "from multiprocessing import Process\nfrom lockstep import join\nProcess(target=write_logs).start()\nteam = join()",
    ],
)
def test_processes_that_do_not_train_are_none_that_a_script_starts_to_train(read, source):
    assert read(source).starter() is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("rank = int(os.environ['RANK'])", True),
        ("rank = os.environ.get('LOCAL_RANK', 0)", True),
        ("is_launched = 'WORLD_SIZE' in os.environ", True),
        ("if dist.is_torchelastic_launched(): ...", True),
        ("os.environ['RANK'] = str(rank)", False),
        ("os.environ['MASTER_PORT'] = '29500'", False),
        ("import setup", True),
    ],
)
def test_a_script_that_reads_what_a_launcher_sets_is_recognised(read, source, expected):
    assert read(source, {"setup.py": "RANK = int(os.getenv('RANK', 0))"}).asks_launcher() is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)", True),
        ("import torch as t\noptimizer = getattr(t.optim, 'SGD')(model.parameters())", True),
        ("from torch import nn, optim", True),
        ("import recipe", True),
        ("import torch\ntorch.optimize = optimal", False),
    ],
)
def test_a_script_that_trains_with_an_optimizer_is_recognised(read, source, expected):
    others = {"recipe.py": "from torch.optim import AdamW", "other.py": "import torch.optim"}
    assert read(source, others).has_optimizer() is expected


SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n"
EITHER = SPAWNS + "rank = os.environ.get('RANK')\n"


@pytest.mark.parametrize(
    ("source", "spawns", "nproc_given", "expected"),
    [
        (SPAWNS, "auto", False, True),
        (SPAWNS, "auto", True, True),
        (EITHER, "auto", False, True),
        (EITHER, "auto", True, False),
        (EITHER, "yes", True, True),
        (SPAWNS, "no", False, False),
        ("", "auto", False, False),
    ],
)
def test_who_starts_the_processes_follows_from_the_source_and_what_was_said(read, source, spawns, nproc_given, expected):
    script = check(read(source), spawns=spawns, nproc_per_node=2 if nproc_given else None)
    assert (script.starter is not None) is expected
    check_starter(script, 1)
    if expected:
        with raises(ConfigError, "script-starts-itself"):
            check_starter(script, 2)
    else:
        check_starter(script, 2)


def test_a_script_that_starts_its_processes_is_passed_no_local_rank(read):
    assert check(read(SPAWNS + "parser.add_argument('--local_rank')"), nproc_per_node=2).arguments(0) == []


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (
            "parser.add_argument('--local_rank')",
            {},
            "--pass-local-rank none",
        ),
        (
            SPAWNS,
            {},
            "torch.multiprocessing.spawn in train.py, line 2)",
        ),
        (EITHER, {"nproc_per_node": None}, "(--spawns no"),
        (EITHER, {}, "(--spawns yes"),
    ],
)
def test_a_guess_is_told_in_a_line_that_says_what_overrides_it(read, source, options, words):
    parsed = read(source)
    (guess,) = check(parsed, **{"nproc_per_node": 2, **options}).guesses
    assert words in guess.replace(f"{parsed.path.parent}/", "")
    assert "\n" not in guess
