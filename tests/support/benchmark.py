"""A tiny checkout in KernelBench's format: problems of our own, one for each thing that problems do."""

from __future__ import annotations

from pathlib import Path

HEAD = "import torch\nimport torch.nn as nn\n\n"

LINEAR = (
    HEAD
    + '''
class Model(nn.Module):
    """A forward pass of a linear layer and a group norm."""

    def __init__(self, features, out, groups):
        super(Model, self).__init__()
        self.fc = nn.Linear(features, out)
        self.norm = nn.GroupNorm(groups, out)
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return torch.relu(self.drop(self.norm(self.fc(x)))) / 2


batch_size = 512
features, out = 4096, 2048
groups = 64


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [features, out, groups]
'''
)

SOFTMAX = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.softmax(x, dim=1)


batch_size = 4096
dim = 32768


def get_inputs():
    return [torch.rand(batch_size, dim)]


def get_init_inputs():
    return []
"""
)

LOSS = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, logits, target):
        return torch.nn.functional.cross_entropy(logits, target)


batch_size = 4096
classes = 1024


def get_inputs():
    return [torch.randn(batch_size, classes), torch.randint(0, classes, (batch_size,))]


def get_init_inputs():
    return []
"""
)

STATE = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.hidden = torch.randn(batch_size, width)
        self.norm = nn.BatchNorm1d(width)
        self.step = nn.Linear(width, width)

    def forward(self, x, start):
        self.hidden.copy_(start)
        self.hidden = torch.tanh(self.step(x) + self.hidden)
        return self.norm(self.hidden)


batch_size = 64
width = 256


def get_inputs():
    return [torch.rand(batch_size, width), torch.rand(batch_size, width)]


def get_init_inputs():
    return [width]
"""
)

IMAGES = (
    SOFTMAX.replace("torch.rand(batch_size, dim)", "torch.rand(batch_size, 3, 224, 224)")
    .replace("super().__init__()", "super().__init__()\n        self.conv = nn.Conv2d(3, 8, 7, 4)")
    .replace("torch.softmax(x, dim=1)", "self.conv(x).amax((2, 3))")
)
"""Spells its images out where it draws them."""

PAIRS = (
    SOFTMAX.replace("torch.softmax(x, dim=1)", "x.reshape(x.shape[0], width, 2).prod(-1)")
    .replace("dim = 32768", "width = 1024\npairs = 2048")
    .replace("torch.rand(batch_size, dim)", "torch.rand(batch_size, pairs)")
)
"""One size must stay twice another."""

HINGE = (
    SOFTMAX.replace("forward(self, x)", "forward(self, x, sign)")
    .replace("torch.softmax(x, dim=1)", "torch.clamp(1 - x * sign, min=0).mean()")
    .replace("dim = 32768", "dim = 4096")
    .replace("torch.rand(batch_size, dim)", "torch.rand(batch_size, dim), torch.randint(0, 2, (batch_size,)) * 2 - 1")
)
"""Broadcasts one input's rows over the other's columns: two sizes that must stay equal."""

PRETRAINED = (
    HEAD
    + """
from model_hub import AutoConfig, AutoModel


class Model(nn.Module):
    def __init__(self, name, config):
        super().__init__()
        self.model = AutoModel.from_pretrained(name, config=config)

    def forward(self, x):
        return self.model(x).logits


name = "some/language-model"
config = AutoConfig.from_pretrained(name)
vocabulary = config.vocabulary
sequence_length = 512
batch_size = 32


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, sequence_length))]


def get_init_inputs():
    return [name, config]
"""
)
"""Takes its model from a hub, as level 4 does."""

MODEL_HUB = """
import json, pathlib, types
import torch
from torch import nn

CACHE = pathlib.Path(__file__).parent / "cache"


def cached(name):
    folder = CACHE / name.replace("/", "--")
    if not folder.exists():
        raise OSError("We could not connect, and did not find it in the cache.\\nCheck your network.")
    return folder


class AutoConfig:
    @staticmethod
    def from_pretrained(name):
        return types.SimpleNamespace(**json.loads((cached(name) / "config.json").read_text()))


class Language(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, 16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return types.SimpleNamespace(logits=self.head(torch.tanh(self.drop(self.embedding(x)))))


class AutoModel:
    @staticmethod
    def from_pretrained(name, config):
        model = Language(config).eval()
        weights = torch.load(cached(name) / "weights.pt", weights_only=True)
        model.embedding.weight.data.copy_(weights["embedding.weight"])
        return model
"""
"""A library that reads models from a local cache, with the calls that level 4 makes."""


def model_hub(folder: Path) -> None:
    """Write the library, without a model in its cache."""
    (folder / "model_hub.py").write_text(MODEL_HUB)


def download(folder: Path, vocabulary: int = 199) -> None:
    """Put the model into the library's cache."""
    import torch

    cache = folder / "cache" / "some--language-model"
    cache.mkdir(parents=True)
    (cache / "config.json").write_text(f'{{"vocabulary": {vocabulary}}}')
    generator = torch.Generator().manual_seed(5)
    torch.save({"embedding.weight": torch.randn(vocabulary, 16, generator=generator)}, cache / "weights.pt")


RANDOM = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.nn.functional.dropout(x, 0.5)")

SOLVE = SOFTMAX.replace("torch.softmax(x, dim=1)", "torch.special.i0e(torch.relu(x))")

BROKEN = "import no_such_module_of_anyone\n"

NO_INPUTS = SOFTMAX.replace("get_inputs", "get_values")

PROBLEMS = {
    "level1/1_Softmax.py": SOFTMAX.replace("batch_size = 4096", "batch_size = 256"),
    "level1/2_Loss.py": LOSS,
    "level1/3_Broken.py": BROKEN,
    "level1/4_No_inputs.py": NO_INPUTS,
    "level1/5_Random.py": RANDOM,
    "level1/6_Bessel.py": SOLVE,
    "level1/7_Hinge.py": HINGE,
    "level1/8_Images.py": IMAGES,
    "level1/9_Pairs.py": PAIRS,
    "level2/1_Linear_GroupNorm.py": LINEAR,
    "level3/10_State.py": STATE,
    "level4/1_some-language-model_bs32_seq512.py": PRETRAINED,
}


def checkout(folder: Path) -> Path:
    """Write the checkout; its root."""
    for name, text in PROBLEMS.items():
        path = folder / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
