"""What accelerate's examples download, made here: data, tokenizers and models, all tiny."""

import os
import random
import types

import datasets
import numpy as np
import torch
import transformers
from accelerate import DistributedType
from PIL import Image
from sklearn.metrics import f1_score
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from torch.utils.data import DataLoader

WORDS = [f"word{number}" for number in range(40)]
EVAL_BATCH_SIZE = 32


class AutoTokenizer:
    @staticmethod
    def from_pretrained(name):
        vocabulary = {word: number for number, word in enumerate(["[PAD]", "[CLS]", "[SEP]", *WORDS])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[PAD]"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
        return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", model_max_length=32)


def load_dataset(path, name):
    """Pairs of sentences of different lengths, which begin with the same word or do not."""
    drawn = random.Random(5)

    def part(size):
        pairs = [([drawn.choice(WORDS) for _ in range(drawn.randint(2, 5))], drawn.randint(0, 1)) for _ in range(size)]
        return datasets.Dataset.from_dict(
            {
                "sentence1": [" ".join(words) for words, _ in pairs],
                "sentence2": [" ".join([words[0] if same else drawn.choice(WORDS), *words[1:]]) for words, same in pairs],
                "label": [same for _, same in pairs],
                "idx": list(range(size)),
            }
        )

    return datasets.DatasetDict({"train": part(43), "validation": part(35)})


def get_dataloaders(accelerator, batch_size=16):
    """The function of the same name in most of the examples."""
    tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
    data = load_dataset("nyu-mll/glue", "mrpc")

    def tokenize_function(examples):
        outputs = tokenizer(examples["sentence1"], examples["sentence2"], truncation=True, max_length=None)
        return outputs

    with accelerator.main_process_first():
        tokenized_datasets = data.map(
            tokenize_function,
            batched=True,
            remove_columns=["idx", "sentence1", "sentence2"],
        )
    tokenized_datasets = tokenized_datasets.rename_column("label", "labels")

    def collate_fn(examples):
        max_length = 128 if accelerator.distributed_type == DistributedType.XLA else None
        if accelerator.mixed_precision == "fp8":
            pad_to_multiple_of = 16
        elif accelerator.mixed_precision != "no":
            pad_to_multiple_of = 8
        else:
            pad_to_multiple_of = None
        return tokenizer.pad(
            examples,
            padding="longest",
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            return_tensors="pt",
        )

    train_dataloader = DataLoader(
        tokenized_datasets["train"], shuffle=True, collate_fn=collate_fn, batch_size=batch_size, drop_last=True
    )
    eval_dataloader = DataLoader(
        tokenized_datasets["validation"],
        shuffle=False,
        collate_fn=collate_fn,
        batch_size=EVAL_BATCH_SIZE,
        drop_last=(accelerator.mixed_precision == "fp8"),
    )
    return train_dataloader, eval_dataloader


class AutoModelForSequenceClassification:
    @staticmethod
    def from_pretrained(name, return_dict=True):
        config = transformers.BertConfig(
            vocab_size=43,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
        )
        return transformers.BertForSequenceClassification(config).eval()


class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(name):
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=43, n_positions=32, n_embd=8, n_layer=1, n_head=2)
        )


class Metric:
    def __init__(self):
        self.predictions, self.references = [], []

    def add_batch(self, predictions, references):
        self.predictions += np.asarray(predictions).tolist()
        self.references += np.asarray(references).tolist()

    def compute(self, predictions=None, references=None):
        if predictions is not None:
            self.add_batch(predictions, references)
        found, right = np.array(self.predictions), np.array(self.references)
        self.__init__()
        return {"accuracy": float((found == right).mean()), "f1": float(f1_score(right, found)), "rows": len(right)}


evaluate = types.SimpleNamespace(load=lambda *names: Metric())


class AdamWScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD, of which ``eval()`` puts the averaged weights in place, as schedulefree's optimizers do."""

    def __init__(self, params, lr, warmup_steps=0):
        super().__init__(params, {"lr": lr, "step": 0, "train": False})

    def _move(self, mode):
        for group in self.param_groups:
            if group["train"] is not mode:
                group["train"] = mode
                for parameter in group["params"]:
                    state = self.state[parameter]
                    if "z" in state:  # the gradient is taken between the average and the fast weights
                        parameter.data.lerp_(state["z"], 0.1 if mode else 1 - 1 / 0.9)

    def train(self):
        self._move(True)

    def eval(self):
        self._move(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            assert group["train"], "optimizer.train() was not called"
            group["step"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    fast = self.state[parameter].setdefault("z", parameter.clone())
                    parameter.lerp_(fast, 1 / group["step"])
                    parameter.sub_(parameter.grad, alpha=group["lr"])
                    fast.sub_(parameter.grad, alpha=group["lr"])


schedulefree = types.SimpleNamespace(AdamWScheduleFree=AdamWScheduleFree)


# Images


def make_images(folder, number=26):
    """Images of two breeds, named as the pets data set names its files."""
    drawn = np.random.default_rng(3)
    os.makedirs(folder, exist_ok=True)
    for index in range(number):
        breed, level = ("beagle", 60) if index % 2 else ("sphynx", 120)
        pixels = drawn.integers(level, level + 100, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(os.path.join(folder, f"{breed}_{index}.jpg"))


def create_model(name, pretrained, num_classes):
    classifier = nn.Linear(8, num_classes)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1)
    )
    model.append(classifier)
    model.default_cfg = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
    model.get_classifier = lambda: classifier
    return model


def Compose(transforms):  # noqa: N802
    def run(image):
        for transform in transforms:
            image = transform(image)
        return image

    return run


def Resize(size):  # noqa: N802
    return lambda image: image.resize(size)


def RandomResizedCrop(size, scale):  # noqa: N802
    def crop(image):
        left, top = torch.randint(0, 4, (2,)).tolist()
        return image.crop((left, top, left + 8, top + 8)).resize(size)

    return crop


def ToTensor():  # noqa: N802
    return lambda image: torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1)
