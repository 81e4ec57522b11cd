"""What ranks do to each other, in plain scripts: PyTorch's own errors, as they are raised here, with names."""

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


def test_a_parameter_used_twice_is_named(words_of):
    words = words_of(
        """
        from torch.utils.checkpoint import checkpoint

        class Twice(Net):
            def forward(self, x):
                for _ in range(2):
                    x = checkpoint(self.fc1, x[:, :4], use_reentrant=True)
                return x

        dist.init_process_group("gloo")
        model = DistributedDataParallel(Twice(), find_unused_parameters=True)
        model(torch.randn(2, 4, requires_grad=True)).sum().backward()
        """,
        nproc=1,
    )
    assert "The gradient of parameter fc1.bias was ready twice" in words
    assert "use_reentrant=False" in words


def test_models_of_different_sizes(words_of):
    words = words_of('dist.init_process_group("gloo")\nDistributedDataParallel(Net(out=3 + rank))')
    assert "parameter fc2.weight is [4, 5] on rank 1, and has another shape on rank 0" in words


def test_models_of_different_numbers_of_parameters(words_of):
    words = words_of(
        """
        dist.init_process_group("gloo")
        DistributedDataParallel(nn.Linear(2, 1) if rank else Net())
        """
    )
    own = {
        "that of rank 0 has 4 parameters that get gradients: fc1.weight [5, 4], fc1.bias [5], fc2.weight [3, 5] and "
        "fc2.bias [3]. That of rank 1 has 2",
        "that of rank 1 has 2 parameters that get gradients: weight [1, 2] and bias [1]. That of rank 0 has 4",
    }
    assert any(text in words for text in own), words


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
        "raise ValueError('NCCL error in: my own words')",
        "import lockstep\nraise lockstep.UsageError('NCCL error in: lockstep says so')",
    ],
)
def test_what_is_not_known_or_has_words_is_left_alone(words_of, source):
    assert words_of(source, nproc=1) == ""
