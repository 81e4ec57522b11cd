"""What ranks do to each other, in plain scripts: PyTorch's own errors, as they are raised here,
with names."""

import re

import pytest

pytestmark = pytest.mark.timeout(100)


def test_unused_parameters_are_named(words_of):
    words = words_of(
        """
        class Skips(Net):
            def forward(self, x):
                return self.fc1(x)

        def main():
            dist.init_process_group("gloo")
            model = Skips()
            model.fc1.bias.requires_grad_(False)  # DDP does not count it
            ddp = DistributedDataParallel(model)
            for _ in range(2):
                ddp(torch.randn(2, 4)).sum().backward()

        main()
        """
    )
    for fact in ("rank ", "fc2.weight [3, 5]", "fc2.bias [3]", "2 of 3 parameters", "find_unused_parameters=True"):
        assert fact in words


LEAVES_AN_OUTPUT_OUT = """
class Two(Net):
    def forward(self, x):
        return self.fc1(x), self.fc2(self.fc1(x))

dist.init_process_group("gloo")
ddp = DistributedDataParallel(Two(), static_graph=True)
for _ in range(4):
    ddp(torch.randn(2, 4))[0].sum().backward()
"""


def test_of_a_static_graph_the_remedy_is_one_that_works(words_of):
    words = words_of(LEAVES_AN_OUTPUT_OUT)
    assert re.search(r"static_graph=True .*find_unused_parameters=True", words)


def test_unused_parameters_are_named_by_the_text_where_the_model_is_not_found(words_of):
    words = words_of(
        """
        dist.init_process_group("gloo")
        error = (
            "Expected to have finished reduction in the prior iteration before starting a new one.\\n"
            "Parameters which did not receive grad for rank 0: a.weight, a.bias\\n"
            "Parameter indices which did not receive grad for rank 0: 2 3"
        )
        raise RuntimeError(error)
        """,
        nproc=1,
    )
    assert "rank 0" in words
    assert "a.weight, a.bias" in words


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGBUS)", ("SIGBUS", "/dev/shm has ", "free now", "emptyDir: {medium: Memory}")),
        ("os.kill(os.getpid(), signal.SIGKILL)", ("SIGKILL", "out-of-memory killer")),
        ("os._exit(3)", ("status 3", "sys.exit() or os._exit()")),
    ],
)
def test_a_loader_worker_that_is_gone(words_of, end, said):
    words = words_of(
        f"""
        import signal, sys

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                {end}

        list(torch.utils.data.DataLoader(Data(), num_workers=1))
        """,
        nproc=1,
    )
    assert words.startswith("Loader worker ")
    assert [fact for fact in said if fact not in words] == []


@pytest.mark.parametrize(
    "source",
    [
        "raise RuntimeError('the data are gone')",
        "raise ValueError('Connection closed by remote peer: my own words')",
        "import lockstep\nraise lockstep.UsageError('Connection closed by remote peer: lockstep says so')",
    ],
)
def test_what_is_not_known_or_has_words_is_left_alone(words_of, source):
    assert words_of(source, nproc=1) == ""
