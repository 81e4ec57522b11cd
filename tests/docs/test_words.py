"""Pages, help texts, messages and docstrings are in plain technical English: ``words.py`` has the
words that are avoided, and what to write instead."""

import pytest
import words


@pytest.mark.parametrize("files", [words.pages(), words.sources()], ids=["pages", "sources"])
def test_pages_and_sources_have_no_banned_word(files):
    hits = [hit for path in files for hit in words.found_in_file(path)]
    assert not hits, "\n".join(map(str, hits))


def test_the_help_of_commands_has_no_banned_word():
    hits = words.found_in_help()
    assert not hits, "\n".join(map(str, hits))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The run goes\non from there.", "goes on"),
        ("It is equal to the bit.", "equal to the bit"),
        ("A value, say, of 3.", "say"),
        ("Set it, else the default is used.", "else"),
        ("This holds the weights.", "holds"),
        ("It has no thread of its own.", "of its own"),
        ("The pass is over.", "is over"),
        ("Two data sets.", "data sets"),
    ],
)
def test_a_banned_word_is_found(text, word):
    [hit] = words.found_in(text, "page.md")
    assert hit.word == word
    assert hit.instead


@pytest.mark.parametrize(
    "text",
    [
        "This thread holds the lock, that one is holding the GIL.",
        "EX stands for exit.",
        "Its size is over 64 kB.",
        "A sentence with `code that says so`, and ``more that holds``.",
        'PyTorch prints "the answer is lost".',
        "```\nlockstep: the run goes on\n```",
        "See [the page](besides.md#anew).",
    ],
)
def test_proper_uses_code_and_quotations_are_left_out(text):
    assert not words.found_in(words.prose_of_markdown(text), "page.md")


def test_messages_and_docstrings_of_sources_are_read(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        '"""A module that goes on."""\n'
        "def stop(path, error):\n"
        '    """Ends.\n\n    Args:\n        path: whoever.\n    """\n'
        '    if "the run is over now" in str(error):\n'
        '        raise ValueError(f"{path} holds {error}, "\n'
        '                         "and nobody knows why")\n'
        '    x = "else"  # says nothing\n'
    )
    assert [(hit.line, hit.word) for hit in words.found_in_file(path)] == [
        (1, "goes on"),
        (6, "whoever"),
        (9, "holds"),
        (9, "nobody"),
    ]
