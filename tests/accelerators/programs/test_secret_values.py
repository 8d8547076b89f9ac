"""Values that hold secrets: different ones have different texts, equal ones equal texts, and no text contains one."""

import collections
import dataclasses
import enum
import functools
import os
import pathlib
import re
import types

import pytest
import torch
from described import Box, described, walked
from program_keys import assert_same, jit, key_of

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.definitions import Definitions
from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.text import Read, find_difference, find_text
from fusioncache.process import secrets

X = torch.zeros(2, 4)
pytestmark = pytest.mark.usefixtures("cheap_digests")


Pair = collections.namedtuple("Pair", "name secret")


class Text(str):
    __slots__ = ()


class Slots:
    __slots__ = ("api_key",)

    def __init__(self, api_key):
        self.api_key = api_key


def make_function(secret):
    def inner(x, plain=1, password=secret, *, token=secret):
        return x

    return inner


def make_class(secret):
    return dataclasses.make_dataclass("Made", [("password", str, secret)], namespace={"api_key": secret})


def make_listing(secret):
    return dataclasses.make_dataclass("Made", [("tokens", list, dataclasses.field(default_factory=lambda: secret))])


KINDS = {
    "attribute": lambda secret: Box(api_key=secret),
    "bytes": lambda secret: Box(password=secret.encode()),
    "a class of its own": lambda secret: Box(password=Text(secret)),
    "slot": Slots,
    "item": lambda secret: {"auth_token": secret},
    "items below": lambda secret: {"credentials": {"user": secret, "more": [secret, (secret, {1: secret})]}},
    "a list": lambda secret: Box(api_keys=[secret]),
    "a set": lambda secret: Box(api_keys={secret}),
    "an ordered dict": lambda secret: collections.OrderedDict(password=secret),
    "a default dict": lambda secret: collections.defaultdict(None, password=secret),
    "a queue": lambda secret: Box(secrets=collections.deque([secret])),
    "a namespace": lambda secret: types.SimpleNamespace(password=secret),
    "a proxy": lambda secret: types.MappingProxyType({"password": secret}),
    "a named tuple": lambda secret: Pair("name", secret),
    "an object below": lambda secret: Box(secret=Box(value=secret)),
    "many": lambda secret: Box(secrets=[f"{secret}{number}" for number in range(50)]),
    "a pattern": lambda secret: Box(secret=re.compile(secret)),
    "a path": lambda secret: Box(secret=pathlib.PurePosixPath(secret)),
    "a partial": lambda secret: functools.partial(len, password=secret),
    "defaults": make_function,
    "a closure": lambda password: lambda x: (x, password),
    "a member": lambda secret: enum.Enum("Made", {"API_KEY": secret}).API_KEY,
    "a member that is a text": lambda secret: enum.Enum("Made", {"API_KEY": secret}, type=str).API_KEY,
    "a class": make_class,
    "a class with a factory": make_listing,
    "a dataclass": lambda secret: make_class(secret)(secret),
    "code": lambda secret: eval(f"lambda x: x == {secret!r}"),
}
WITHOUT_A_NAME = {
    "a list without a name": lambda secret: Box(a=[secret]),
    "a key": lambda secret: {f"{secret}!": 1},
    "a text made of it": lambda secret: Box(header=f"Bearer {secret}"),
    "bytes": lambda secret: Box(a=secret.encode()),
    "an address": lambda secret: f"https://{secret}@host",
}


@pytest.mark.parametrize("kinds", [KINDS, WITHOUT_A_NAME], ids=["named", "unnamed"])
def test_secrets_are_told_apart_and_in_no_text(kinds):
    first, other = ("zqhunter", "zqfisher") if kinds is KINDS else ("Zq-hunter 1", "Zq-fisher 1")
    for kind, make in kinds.items():
        texts = [
            (described(make(secret)), str(walked(make(secret))), Definitions(Describer()).name(make(secret)))
            for secret in (first, first, other)
        ]
        assert texts[0] == texts[1] and texts[0][0] != texts[2][0], kind
        assert "zq" not in str(texts).lower(), kind


class Call(torch.nn.Module):
    def forward(self, x, api_key, mode="fast", *more, token=None):
        return x


def test_arguments_are_secret_by_the_names_of_parameters():
    calls = jit(Call())

    def call(secret, **kwargs):
        return key_of(calls, X, secret, "fast", "Zq more", token=secret, **kwargs)

    key = call("zqhunter")
    assert_same(key, call("zqhunter"))
    assert call("zqfisher") != key
    assert "zq" not in key.text.lower()
    texts = dict(line.split(" ", 1) for line in key.texts["arguments"].splitlines())
    assert texts["args.2"] == "'fast'" and texts["args.1"] == texts["kwargs.token"]
    assert texts["args.1"] == secrets.write_text("zqhunter", secrets.TextKind.SECRET)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x, password: x, secrets.TextKind.SECRET),
        (lambda x, *tokens, password=None: x, secrets.TextKind.VALUE),
        (lambda x, *api_key: x, secrets.TextKind.SECRET),
        (functools.wraps(make_function)(lambda *args: args[0]), secrets.TextKind.VALUE),
        (Call().forward, secrets.TextKind.SECRET),
    ],
)
def test_arguments_have_the_names_of_whatever_is_called(function, kind):
    texts = key_of(jit(function), X, "zqhunter").texts["arguments"].splitlines()
    assert texts[2] == f"args.1 {secrets.write_text('zqhunter', kind)}"


def test_a_global_is_secret_by_its_name(monkeypatch):
    for name in ("ZQ_API_KEY", "ZQ_MODE"):
        monkeypatch.setattr(introspection, name, "zqhunter", raising=False)
    texts = [
        find_text(kind, f"{introspection.__name__}.{name}", Describer())
        for kind in ("global", "attribute")
        for name in ("ZQ_API_KEY", "ZQ_MODE")
    ]
    assert texts == [texts[0], "'zqhunter'"] * 2 and texts[0].startswith("hidden str ")
    read = Read("global", f"{introspection.__name__}.ZQ_API_KEY", texts[0])
    assert find_difference([read], Describer()) is None
    monkeypatch.setattr(introspection, "ZQ_API_KEY", "zqfisher")
    assert find_difference([read], Describer()).read == read


def test_variables_are_never_shown(monkeypatch):
    for name in ("HF_TOKEN", "MODE"):
        monkeypatch.setenv(name, "fast")
        assert introspection.describe_variable(name).startswith("set, hidden str ")
    assert introspection.describe_variable("HF_TOKEN") != introspection.describe_variable("MODE")
    monkeypatch.delenv("MODE")
    assert introspection.describe_variable("MODE") == "unset" and "MODE" not in os.environ
