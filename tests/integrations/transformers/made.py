"""Tiny models, tokenizers and data that need no network."""

import json
import random
import textwrap
from pathlib import Path

GOOD, BAD = ["good", "great", "fine", "lovely", "sound", "right"], ["bad", "poor", "wrong", "dull", "weak", "broken"]
PLAIN = ["the", "a", "film", "book", "story", "actor", "was", "is", "very", "not", "quite", "and", "of", "in", "with", "it"]


def tokenizer(lines, folder):
    """Byte pairs of these lines."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<unk>", "<pad>"]
    made.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=300, special_tokens=special, show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>", model_max_length=64)
    fast.save_pretrained(folder)


def language_model(folder):
    """``train.txt``, ``validation.txt`` and, in ``tiny``, the configuration and the tokenizer of a
    GPT."""
    from transformers import GPT2Config

    lines = Path(textwrap.__file__).read_text().splitlines()
    (folder / "train.txt").write_text("\n".join(lines[60:300]))
    (folder / "validation.txt").write_text("\n".join(lines[:60]))
    tokenizer(lines, folder / "tiny")
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    GPT2Config(vocab_size=300, bos_token_id=0, eos_token_id=0, **sizes).save_pretrained(folder / "tiny")


def classifier(folder):
    """``train.json``, ``validation.json``, ``test.json`` and, in ``tiny``, the configuration and
    the tokenizer of a BERT."""
    from transformers import BertConfig

    draw = random.Random(0)

    def sentence():
        label = draw.randrange(2)
        words = draw.choices(PLAIN, k=draw.randrange(3, 12)) + draw.choices((BAD, GOOD)[label], k=2)
        draw.shuffle(words)
        return {"sentence": " ".join(words), "label": label if draw.random() < 0.9 else 1 - label}

    found = []
    for name, size in {"train": 150, "validation": 41, "test": 23}.items():
        rows = [sentence() for _ in range(size)]
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found += [row["sentence"] for row in rows]
    tokenizer(found, folder / "tiny")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertConfig(vocab_size=300, max_position_embeddings=64, pad_token_id=1, **sizes).save_pretrained(folder / "tiny")
