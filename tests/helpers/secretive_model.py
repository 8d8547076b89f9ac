"""Models that hold secrets wherever a model may hold them: tests put another one in the place of SEED, and run a copy.

Secrets whose names reveal them are plain words, like bad passwords. The others are no words.
"""

import enum
import os
import pathlib
import re
import types
import typing
from dataclasses import dataclass, field

import thunder
import torch

import fusioncache
from fusioncache.process import secrets

API_KEY = "zqglobalSEED"  # zqremarkSEED
SETTINGS = {"url": "https://zqaddressSEED@host", "auth": {"user": "zquserSEED", "more": ["zqdeepSEED"]}}
os.environ["HF_TOKEN"] = "zqvariableSEED"
os.environ["THUNDER_PASSWORD"] = "zqthunderSEED"


@dataclass
class Account:
    password: str = "zqdefaultfieldSEED"
    tokens: list = field(default_factory=lambda: ["Zq listed SEED"])


class Pair(typing.NamedTuple):
    name: str
    secret: str


class Credential(enum.Enum):
    ACCESS_KEY = "zqmemberSEED"


def make_scale():
    password = "zqclosureSEED"
    return lambda x: x * 2 if password else x


scale = make_scale()


class Model(torch.nn.Module):
    signing_key = "zqclassSEED"

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.api_key = "zqattributeSEED"
        self.unread_api_key = "zqunreadSEED"
        self.password = b"zqbytesSEED"
        self.config = {"auth_token": "zqitemSEED", "list": ["Zq in a list SEED"], "access_keys": ["zqkeysSEED"]}
        self.account = Account()
        self.accounts = [Account("zqfieldSEED")]
        self.pair = Pair("name", "zqpairSEED")
        self.space = types.SimpleNamespace(credentials="zqspaceSEED")
        self.kind = Credential.ACCESS_KEY
        self.file = pathlib.PurePosixPath("/zq/path/SEED")
        self.pattern = re.compile("Zq.pattern.SEED")
        self.by_key = {"Zq key SEED": 1}
        self.header = f"Bearer {API_KEY} made SEED"
        self.plain = "gelu"

    def forward(self, x, access_key, *tokens, note="", secret="zqkeyworddefaultSEED"):
        if self.api_key == "zqattributeSEED" and self.config["auth_token"] and self.account.password:
            x = scale(x)  # zqcommentSEED
        if API_KEY == "zqconstantSEED" or access_key == "zqcomparedSEED" or secret == "":
            x = x + 1
        if self.header and self.space.credentials and SETTINGS["auth"]["user"] and note and tokens[0]:
            x = x * 3
        if os.environ["HF_TOKEN"] and self.signing_key and self.accounts[0].password and self.plain == "gelu":
            x = x * 5
        return torch.tanh(self.layer(x))


class Failing(Model):
    def forward(self, x, access_key):
        raise RuntimeError(f"{access_key} zqraisedSEED")


def call(model, *args, **kwargs):
    transform = fusioncache.FusionCache(backend="eager")
    result = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])(*args, **kwargs)
    stats = transform.stats()
    print("made", stats.programs_made, "loaded", stats.programs_loaded, dict(stats.programs_refused))
    return result


if __name__ == "__main__":
    os.umask(0o022)
    secrets.COST = 2
    torch.manual_seed(0)
    call(Model(), torch.randn(4, 16), "zqpositionSEED", "Zq rest SEED", note="Zq note SEED", secret="zqargumentSEED")
    call(lambda x, api_key: x * 2 if f"{api_key} made SEED" else x, torch.randn(4, 16), "zqmadeofSEED")
    try:
        call(Failing(), torch.randn(4, 16), "zqfailedSEED")
    except RuntimeError:
        print("failed")
