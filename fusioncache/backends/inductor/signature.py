"""What artifacts are for, written among them, and the digests of all of them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.backends.inductor.language import RESERVED
from fusioncache.ir import Graph

FORMAT = 2

_SIGNATURE, _WRAPPER, _KERNEL = "signature.json", "wrapper.py", "kernel-{}.so"
_SOURCE = "kernels.cpp"
"""For people: it is in no digest, and nothing reads it to load what was kept."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Signature:
    """What artifacts are for, and the digests of all of them.

    Attributes:
        inputs: dtype, sizes and strides of each argument.
        outputs: how many there are.
        threads: among which the code divides its work.
        kernels: name and digest of each.
        wrapper: its digest.
    """

    inputs: Sequence[Sequence[Any]]
    outputs: int
    threads: int
    kernels: Sequence[tuple[str, str]]
    wrapper: str


def artifacts_of(
    wrapper: str, libraries: Mapping[str, bytes], source: str, outputs: int, args: Sequence[Any]
) -> dict[str, bytes]:
    """The artifacts of compiled code.

    Args:
        wrapper: the text.
        libraries: of the kernels that it calls, by their names.
        source: of these kernels, if there is any.
        outputs: how many it returns.
        args: that it was compiled for.
    """
    import torch

    text = wrapper.encode()
    signature = {
        "format": FORMAT,
        "inputs": _described(args),
        "outputs": outputs,
        "threads": torch.get_num_threads(),
        "kernels": [[name, _digest(library)] for name, library in libraries.items()],
        "wrapper": _digest(text),
    }
    files = {_KERNEL.format(place): library for place, library in enumerate(libraries.values())}
    if source:
        files[_SOURCE] = source.encode(errors="replace")
    return {_SIGNATURE: json.dumps(signature, sort_keys=True).encode(), _WRAPPER: text, **files}


def read_signature(artifacts: Mapping[str, bytes]) -> Signature:
    """The signature among artifacts.

    Raises:
        ValueError: if it is none of this format.
    """
    try:
        fields = json.loads(artifacts[_SIGNATURE])
        if fields.pop("format") != FORMAT:
            raise ValueError("artifacts of another format")
        signature = Signature(**fields)
        signature = replace(signature, kernels=[(name, digest) for name, digest in signature.kernels])
    except KeyError as error:
        raise ValueError(f"artifacts without {error}") from error
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError("a signature that is none") from error
    names = [name for name, _ in signature.kernels]
    if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) or len(set(names)) != len(names):
        raise ValueError("a signature with strange kernels")
    if RESERVED & set(names):
        raise ValueError("a signature with kernels of reserved names")
    return signature


def refuse_unfitting(signature: Signature, graph: Graph, args: Sequence[Any]) -> None:
    """Refuses what is for another graph, or for arguments of another layout. They need not be plain tensors.

    Raises:
        ValueError: says what does not fit.
    """
    import torch

    if not all(isinstance(arg, torch.Tensor) and arg.device.type == "cpu" for arg in args):
        raise ValueError("kept code is for tensors on the CPU")
    if signature.inputs != _described(args) or len(graph.inputs) != len(args):
        raise ValueError("kept code is for arguments of another layout")
    if type(signature.outputs) is not int or signature.outputs != len(graph.outputs):
        raise ValueError("kept code has another number of outputs")
    if signature.threads != torch.get_num_threads():
        raise ValueError("kept code is for another number of threads")


def _described(args: Sequence[Any]) -> list[list[Any]]:
    return [[str(arg.dtype).removeprefix("torch."), list(arg.shape), list(arg.stride())] for arg in args]


def contents(artifacts: Mapping[str, bytes], signature: Signature) -> tuple[bytes, dict[str, bytes]]:
    """The wrapper, and the library of each kernel by its name.

    Raises:
        ValueError: if one is missing or damaged.
    """
    names = ((name, _KERNEL.format(place), digest) for place, (name, digest) in enumerate(signature.kernels))
    libraries = {name: _whole(artifacts, file, digest) for name, file, digest in names}
    return _whole(artifacts, _WRAPPER, signature.wrapper), libraries


def _whole(artifacts: Mapping[str, bytes], name: str, digest: Any) -> bytes:
    content = artifacts.get(name)
    if content is None or _digest(content) != digest:
        raise ValueError(f"{name} is missing or damaged")
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
