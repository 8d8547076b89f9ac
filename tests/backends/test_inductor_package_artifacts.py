"""Artifacts of TorchInductor's code that are damaged, or made up: nothing of them is run."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import pytest
from commands import get_output
from inductor_artifacts import CASES, artifacts_of, made
from recorded_templates import make_ledger, save_ledger

from fusioncache.backends.inductor.backend import Inductor
from fusioncache.ir import Declined, Template
from fusioncache.store import Store
from fusioncache.template.key import make_key

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


def test_the_source_of_the_very_kernel_is_shown(monkeypatch):
    graph, _ = CASES["two"]()
    save_ledger(monkeypatch, make_ledger(Template(graph, make_key(graph, {}), "two")))
    store = Store.open()
    assert store.save(make_key(graph, {"layout": "any"}), "inductor", artifacts_of(made("two")))
    ((kernel, *_),) = json.loads(artifacts_of(made("two"))["signature.json"])["kernels"]
    text = get_output("show", "two", "--code")
    assert f"# kernels.cpp\n// {kernel}\n" in text
    assert 'extern "C"' in text
    assert "tanh(" in text
    assert text.endswith(artifacts_of(made("two"))["wrapper.py"].decode())


HOSTILE_SIGNATURES = {
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe\xff",
    "a list": b"[]",
    "a number": b"1e999",
    "nothing": b"null",
    "deep": b"[" * 200_000,
    "long": b"1" * 100_000,
    "empty": b"{}",
}


@pytest.mark.parametrize("name", HOSTILE_SIGNATURES)
def test_a_hostile_signature_is_refused(name):
    artifacts = {**artifacts_of(made("two")), "signature.json": HOSTILE_SIGNATURES[name]}
    with pytest.raises(ValueError):
        Inductor().load(artifacts, *CASES["two"]())


@pytest.mark.parametrize(
    "fields",
    [
        *({"format": value} for value in (3, 5, None)),
        *({"surplus": 1}, {"inputs": 3}, {"inputs": []}, {"outputs": "1"}, {"threads": None}, {"wrapper": {}}),
        *({"kernels": [[name, 0, "kernel"]]} for name in ("torch", "call", "a.b", [])),
        *({"kernels": [["k", *place]]} for place in ([1, "kernel"], [-1, "kernel"], [0, "__dict__"], [0, "a.b"], [0])),
        *({"kernels": 5}, {"kernels": {"ab": 1}}, {"kernels": [["k", 0, "kernel"], ["k", 0, "kernel"]]}),
        *({"libraries": 5}, {"libraries": []}, {"libraries": ["0"]}),
    ],
    ids=str,
)
def test_a_signature_with_hostile_fields_is_refused(fields):
    with pytest.raises(ValueError):
        Inductor().load(changed(artifacts_of(made("two")), fields), *CASES["two"]())


def changed(artifacts: Mapping[str, bytes], fields: Mapping[str, Any]) -> dict[str, bytes]:
    signature = {**json.loads(artifacts["signature.json"]), **fields}
    return {**artifacts, "signature.json": json.dumps(signature).encode()}


@pytest.mark.parametrize("name", ["signature.json", "wrapper.py", "kernel-0.so"])
def test_missing_cut_and_altered_artifacts_are_refused(name):
    artifacts = artifacts_of(made("two"))
    content = artifacts.pop(name)
    middle = len(content) // 2
    altered = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for other in ({}, {name: content[:middle]}, {name: b""}, *([{name: altered}] if name != "signature.json" else [])):
        with pytest.raises(ValueError):
            Inductor().load({**artifacts, **other}, *CASES["two"]())


def test_a_library_that_is_none_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for library in (b"", b"no library", artifacts_of(made("two"))["kernel-0.so"][:100]):
        kernels, digests = [["k", 0, "kernel"]], [hashlib.sha256(library).hexdigest()]
        wrapper = b"def call(args):\n    a, b = args\n    k(a)\n    return [a]\n"
        fields = {"kernels": kernels, "libraries": digests, "wrapper": hashlib.sha256(wrapper).hexdigest()}
        artifacts = {**artifacts_of(made("two")), "kernel-0.so": library, "wrapper.py": wrapper}
        with pytest.raises(ValueError, match="does not load"):
            Inductor().load(changed(artifacts, fields), *CASES["two"]())
    assert not list(tmp_path.iterdir())


START = "def call(args):\n    a, b = args\n    "


@pytest.mark.parametrize(
    "wrapper",
    [
        "import os\n",
        "print(1)\n",
        START + "import os\n",
        START + "return a.__class__\n",
        START + "return __import__('os')\n",
        START + "return torch.load('x')\n",
        START + "return torch.float32.__class__\n",
        START + "return torch.ops\n",
        START + "while True: pass\n",
        START + "return [x for x in a]\n",
        START + "return (lambda: a)()\n",
        START + "return empty_strided_cpu((1,), (1,), 'x')\n",
        START + "return empty_strided_cpu(size=(1,))\n",
        START + "return empty_strided_cpu\n",
        START + "return c\n",
        START + "torch = a\n",
        START + "reinterpret_tensor = a\n",
        START + "del torch\n",
        START + "a[0] = b\n",
        START + "return f'{a}'\n",
        START + "return " + "-" * 100_000 + "1\n",
        START + "return " + "(" * 10_000 + ")" * 10_000 + "\n",
        START + "return a" + ".b" * 50_000 + "\n",
        START + "return [a]\ndef more(): pass\n",
        "@print\n" + START + "return [a]\n",
        "def call(args, more=print()):\n    return [args]\n",
        "def call(args: print()):\n    return [args]\n",
        "def call(args) -> print():\n    return [args]\n",
        "async def call(args):\n    return [args]\n",
        "\0",
        "",
        "#" * 5_000_000,
    ],
    ids=lambda wrapper: wrapper.removeprefix(START)[:40],
)
def test_a_wrapper_in_another_language_is_refused_before_it_runs(wrapper):
    fields = {"wrapper": hashlib.sha256(wrapper.encode()).hexdigest()}
    artifacts = changed({**artifacts_of(made("two")), "wrapper.py": wrapper.encode()}, fields)
    with pytest.raises(Declined, match=r"a (long )?wrapper"):
        Inductor().load(artifacts, *CASES["two"]())
