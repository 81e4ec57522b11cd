"""What ranks do to each other, in plain scripts: PyTorch's own errors, as they are raised here,
with names."""

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
    assert "did not depend on fc2.weight [3, 5] and fc2.bias [3] (2 of 3 parameters)" in words
    assert "the loss of rank " in words
    assert "find_unused_parameters=True" in words


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
    assert "return only what the loss uses" in words
    assert "leave static_graph=True out" in words


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
    assert "the loss of rank 0 did not depend on a.weight, a.bias." in words


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            "os.kill(os.getpid(), signal.SIGBUS)",
            "ended by SIGBUS: mostly it wrote a batch into shared memory when none was left. ",
        ),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL: nearly always the system's out-of-memory killer"),
        ("os._exit(3)", "ended with status 3: sys.exit() or os._exit()"),
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
    assert said in words
    if "SIGBUS" in end:
        assert "/dev/shm has " in words
        assert "free now" in words


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
