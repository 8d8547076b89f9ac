"""Compiled code as artifacts and back: a signature, the text of a wrapper, and the libraries of its kernels."""

from __future__ import annotations

import atexit
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fusioncache.backends.api import Description, Source
from fusioncache.backends.inductor.joined_kernels import ENTRY
from fusioncache.backends.inductor.language import RESERVED
from fusioncache.backends.inductor.package import Package
from fusioncache.ir import Graph
from fusioncache.ir.strict_json import decode, encode
from fusioncache.process import forks

FORMAT = 3

_SIGNATURE, _WRAPPER, _KERNEL = "signature.json", "wrapper.py", "kernel-{}.so"
_SOURCE = "kernels.cpp"
"""The kernels' C++, for people: it is in no digest, and loading does not look at it."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOST_LOADED = 64
"""Of how many libraries the bytes are held, so that they are loaded once."""

type Place = tuple[int, str]
"""The number of a kernel's library, and its name in there."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What artifacts are for, and the digests of all of them.

    Attributes:
        inputs: dtype, sizes and strides of each argument.
        outputs: how many there are.
        threads: among which the code divides its work.
        kernels: name and place of each.
        libraries: the digest of each.
        wrapper: its digest.
    """

    inputs: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    outputs: int
    threads: int
    kernels: tuple[tuple[str, Place], ...]
    libraries: tuple[str, ...]
    wrapper: str


def pack(package: Package, args: Sequence[Any]) -> dict[str, bytes]:
    """Makes the artifacts of compiled code.

    Args:
        package: the code.
        args: that it was compiled for.
    """
    import torch

    text = package.wrapper.encode()
    libraries = list(dict.fromkeys(kernel.library for kernel in package.kernels.values()))
    places = {name: [libraries.index(kernel.library), kernel.name] for name, kernel in package.kernels.items()}
    signature = {
        "format": FORMAT,
        "inputs": _describe_arguments(args),
        "outputs": package.outputs,
        "threads": torch.get_num_threads(),
        "kernels": [[name, *place] for name, place in places.items()],
        "libraries": [_digest(library) for library in libraries],
        "wrapper": _digest(text),
    }
    files = {_KERNEL.format(number): library for number, library in enumerate(libraries)}
    if package.source:
        files[_SOURCE] = package.source.encode(errors="replace")
    return {_SIGNATURE: encode(signature), _WRAPPER: text, **files}


def read_signature(artifacts: Mapping[str, bytes]) -> Signature:
    """Reads the signature among artifacts.

    Raises:
        ValueError: if there is none of this format.
    """
    if _SIGNATURE not in artifacts:
        raise ValueError(f"artifacts without {_SIGNATURE}")
    body = decode(artifacts[_SIGNATURE], "signature", format=FORMAT)
    names_of_fields = "inputs", "outputs", "threads", "kernels", "libraries", "wrapper"
    inputs, outputs, threads, kernels, libraries, wrapper = body.fields(*names_of_fields)
    digests = tuple(digest.text() for digest in libraries.items())
    arguments = (argument.items(3) for argument in inputs.items())
    named = tuple(
        (name.text(_NAME), (library.integer(0, len(digests) - 1), function.text(_NAME)))
        for name, library, function in (kernel.items(3) for kernel in kernels.items())
    )
    names = {name for name, _ in named}
    if len(names) != len(named) or RESERVED & names:
        raise ValueError("a signature with kernels of reserved names, or of one name")
    return Signature(
        tuple((dtype.text(), sizes.integers(), strides.integers()) for dtype, sizes, strides in arguments),
        outputs.integer(),
        threads.integer(),
        named,
        digests,
        wrapper.text(),
    )


def unpack(artifacts: Mapping[str, bytes], signature: Signature) -> tuple[bytes, list[bytes]]:
    """Returns the wrapper, and the libraries.

    Raises:
        ValueError: if one is missing or damaged.
    """
    files = ((_KERNEL.format(number), digest) for number, digest in enumerate(signature.libraries))
    libraries = [_read_whole(artifacts, file, digest) for file, digest in files]
    return _read_whole(artifacts, _WRAPPER, signature.wrapper), libraries


def check_arguments(signature: Signature, graph: Graph, args: Sequence[Any]) -> None:
    """Checks that code is for this graph and for arguments of this layout. They need not be plain tensors.

    Raises:
        ValueError: says what does not fit.
    """
    import torch

    if not all(isinstance(arg, torch.Tensor) and arg.device.type == "cpu" for arg in args):
        raise ValueError("stored code is for tensors on the CPU")
    if signature.inputs != _describe_arguments(args) or len(graph.inputs) != len(args):
        raise ValueError("stored code is for arguments of another layout")
    _check_use(signature, graph)


def check_arguments_of_any_size(signature: Signature, graph: Graph, args: Sequence[Any]) -> None:
    """Checks that code is for this graph, and for arguments of these types, whatever their sizes and layouts.

    Raises:
        ValueError: says what does not fit.
    """
    types = [(dtype, len(sizes)) for dtype, sizes, _ in signature.inputs]
    if types != [(dtype, len(sizes)) for dtype, sizes, _ in _describe_arguments(args)]:
        raise ValueError("stored code is for arguments of other types")
    _check_use(signature, graph)


def _check_use(signature: Signature, graph: Graph) -> None:
    import torch

    if signature.outputs != len(graph.outputs):
        raise ValueError("stored code has another number of outputs")
    if signature.threads != torch.get_num_threads():
        raise ValueError("stored code is for another number of threads")


def describe(artifacts: Mapping[str, bytes]) -> Description:
    """See ``Backend.describe``. A wrapper of views alone has no kernels and no source."""
    sources = tuple(
        Source(name, language, artifacts[name].decode(errors="replace"))
        for name, language in ((_SOURCE, "cpp"), (_WRAPPER, "python"))
        if name in artifacts
    )
    return Description(sources, lacks_source=_SOURCE not in artifacts and _KERNEL.format(0) in artifacts)


def _describe_arguments(args: Sequence[Any]) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
    return tuple((str(arg.dtype).removeprefix("torch."), tuple(arg.shape), tuple(arg.stride())) for arg in args)


def _read_whole(artifacts: Mapping[str, bytes], name: str, digest: str) -> bytes:
    content = artifacts.get(name)
    if content is None or _digest(content) != digest:
        raise ValueError(f"{name} is missing or damaged")
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_ADDRESS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""The variable in which a library looks, while it is loaded, for the function that gives a tensor's address."""

_loading = forks.lock()


def load_kernels(signature: Signature, libraries: Sequence[bytes], scratch: Path | None) -> dict[str, Any]:
    """Loads the kernels of libraries, by the names that the wrapper has for them.

    Raises:
        ImportError: if one does not load.
    """
    modules = [load_module(library, scratch) for library in libraries]
    return {name: find_kernel(modules[number], function) for name, (number, function) in signature.kernels}


@lru_cache(_MOST_LOADED)
def load_module(library: bytes, scratch: Path | None) -> Any:
    """Loads a library, once for all regions that have a kernel in it. Its file is there just for that moment.

    Raises:
        ImportError: if it does not load.
    """
    folder = Path(tempfile.mkdtemp(prefix="fusioncache-", dir=scratch))
    try:
        return load_library(library, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():  # where files in use cannot be removed
            atexit.register(shutil.rmtree, folder, ignore_errors=True)


def find_kernel(module: Any, name: str) -> Any:
    """Returns a kernel of a library.

    Raises:
        ImportError: if it has none of this name.
    """
    kernel = getattr(module, name, None)
    if kernel is None:
        raise ImportError("no kernel in it")
    return kernel


def load_library(library: bytes, folder: Path) -> Any:
    """Loads one library, as TorchInductor does, from a file in this folder."""
    import torch

    # The system and Python both take a path that they have seen before for the library that they already have.
    number = uuid.uuid4().hex
    path, name = folder / f"{number}.so", f"fusioncache_{number}.{ENTRY}"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700), "wb") as file:
        file.write(library)
    with _loading:
        os.environ[_ADDRESS] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)
        loader = importlib.machinery.ExtensionFileLoader(name, str(path))
        spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules.pop(name, None)  # where such a module enters itself
    return module
