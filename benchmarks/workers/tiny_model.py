"""A stand-in for a tiny model of the Hub: the same kind, with random weights and one token for each
word, in the directory that has its name. (``from_pretrained`` takes a directory before it asks the
Hub.)"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

WORDS = (
    "<unk> <end> the quick brown fox jumps over lazy dog a journey of thousand miles begins with single step to be or not"
)


def main(directory: str) -> None:
    words = {word: number for number, word in enumerate(dict.fromkeys(WORDS.split()))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>").save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64,  # AutoTokenizer adds Qwen2's own special tokens
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main(sys.argv[1])
