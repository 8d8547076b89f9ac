"""Fuzzes decoders with files and artifacts in which bytes were changed at random.

Each input is a valid file with one to eight changes: a bit, a byte, a number, a part that is cut out, duplicated or
inserted from another file. It must either decode or be refused; any other exception of a decoder is a crash. Signatures
are not verified, because they would reject every input.
"""

from __future__ import annotations

import hashlib
import random
import resource
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import thunder
import torch

import fusioncache
from benchmarks.common.options import count_option
from benchmarks.common.runner import Run, benchmark, pick
from benchmarks.remote.hosts import fill
from fusioncache.accelerators.programs import text
from fusioncache.accelerators.sizes.families import decode_outline
from fusioncache.backends.nvfuser import recipe
from fusioncache.ir import Key
from fusioncache.ir.keys import read_key
from fusioncache.store import Store, StoreError
from fusioncache.store.entry import decode_entry, encode_entry, open_entry
from fusioncache.store.files import Refusal
from fusioncache.store.index import Index, decode_index, encode_index, list_pack
from fusioncache.store.packs import LONGEST_LINES, measure_head, open_head, open_pack, write_pack
from fusioncache.store.signing import Trust, split_origin

_ANYONE = Trust(MappingProxyType({}), MappingProxyType({}), unsigned=True)
_NUMBERS = (b"0", b"-1", b"1e999", b"9223372036854775808", b"null", b"[]", b"{}", b'""', b"[" * 2000)


def make_inputs(folder: Path) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Returns a valid file of each kind, and its decoder."""
    store = Store.open(folder / "store", remote="")
    fill(store, 3, 50)
    assert store.disk is not None
    entry = next(store.disk.list_entries())
    packed = write_pack(store.disk, store.disk.entries.list_files(), folder / "pack", model="m", version="1", key=None)
    content = packed.path.read_bytes()
    start = measure_head(content[:LONGEST_LINES])
    head = open_head(content[:start], _ANYONE)
    index = encode_index(Index(1, (list_pack(head, packed.bytes, 1.0),)), None)

    def read_head(given: bytes) -> object:
        return open_head(given[: measure_head(given[:LONGEST_LINES])], _ANYONE)

    body = encode_entry(entry).partition(b"\n")[2]
    return {
        "entry": (encode_entry(entry), lambda given: decode_entry(given, entry.id)),
        "entry, its checksum right": (body, lambda given: open_entry(_with_checksum(given), entry.id, _ANYONE)),
        "head of a pack": (content[:start], read_head),
        "index": (index, lambda given: decode_index(given, _ANYONE)),
        "line of a signature": (b"fusioncache signed 1 " + b"0" * 64 + b" " + b"1" * 128 + b"\nx", split_origin),
        "key": (b"ops 4\nabcd\narchitecture 2\nxy\n", lambda given: read_key(given.decode(errors="replace"))),
        "pack": (content, lambda given: _read_pack(folder / "fuzzed", given)),
    }


def make_artifacts(folder: Path) -> dict[str, tuple[bytes, Callable[[bytes], object]]]:
    """Returns a valid artifact of each kind, and its decoder. They are from a model's programs for two lengths."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    cache = fusioncache.Cache(record=False, store=folder / "artifacts")
    transform = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    for length in (12, 20):
        compiled(torch.ones(2, length, 8)).sum().backward()
    store = Store.open(folder / "artifacts", remote="")
    found = {
        name: content
        for entry in store.entries()
        for name, content in (
            store.load(Key(entry.digest, entry.text, ()), entry.backend, asks_remote=False) or {}
        ).items()
    }
    cubin = b"\x7fELF\x02\x01".ljust(18, b"\0") + (190).to_bytes(2, "little") + bytes(12)
    cubin += struct.pack("<QQ4xHHHHHH", 64, 120, 64, 56, 1, 64, 2, 0)
    cubin += struct.pack("<8xQ16xQ16x", 64, 16) + 2 * struct.pack("<4xI16xQQ24x", 1, 64, 16)
    return {
        "traces of a program": (found["program"], text.decode),
        "reads of a program": (found["reads"], text.decode_reads),
        "passes of a family": (found["family"], decode_outline),
        "launches of nvFuser": (recipe.encode(_make_recipe()), recipe.decode),
        "cubin": (cubin, recipe.check_cubin),
    }


def _make_recipe() -> recipe.Recipe:
    layout = recipe.Layout("float32", (4, 8), (8, 1))
    launch = recipe.Launch(
        cubin="0.cubin",
        function="nvfuser_pointwise",
        grid=(7, 2, 1),
        block=(128, 1, 1),
        shared=16,
        most_shared=49152,
        cooperative=True,
        parameters=(bytes(8) + b"\x04\0\0\0\x08\0\0\0", bytes(24)),
        pointers=(recipe.Pointer(0, 0, 0, 0), recipe.Pointer(1, 8, 2, 64)),
    )
    return recipe.Recipe(
        inputs=(recipe.Input(layout, 16),),
        allocations=(128, 512),
        outputs=(recipe.Fresh(layout, 0, 0), recipe.View(layout, 0, 0, True), recipe.Duplicate(0)),
        steps=(recipe.Fill(2, 0, 256, 0), launch),
        widest=16,
    )


def _with_checksum(body: bytes) -> bytes:
    return b"fusioncache entry 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)


def _read_pack(path: Path, content: bytes) -> object:
    path.write_bytes(content)
    pack = open_pack(path, _ANYONE)
    found = []
    for packed in pack.manifest.entries:
        with suppress(Refusal):
            found.append(pack.read_entry(packed, _ANYONE))
    return found


def change(content: bytes, others: bytes, chance: random.Random) -> bytes:
    """Returns the content with one to eight random changes."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(changed) + 1)
        what = chance.randrange(6)
        if what == 0 and place < len(changed):
            changed[place] ^= 1 << chance.randrange(8)
        elif what == 1:
            changed[place:place] = bytes([chance.randrange(256)])
        elif what == 2:
            changed[place : place + chance.randrange(1, 8)] = chance.choice(_NUMBERS)
        elif what == 3:
            del changed[place : place + chance.randrange(1, 64)]
        elif what == 4:
            changed[place:place] = changed[place : place + chance.randrange(1, 64)]
        else:
            begin = chance.randrange(len(others))
            changed[place:place] = others[begin : begin + chance.randrange(1, 64)]
    return bytes(changed)


def fuzz(read: Callable[[bytes], object], content: bytes, others: bytes, inputs: int, seed: int) -> Mapping[str, int]:
    """Returns how many inputs decoded, were refused, or made the decoder crash, by exception."""
    chance, found = random.Random(seed), Counter[str]()
    for _ in range(inputs):
        try:
            read(change(content, others, chance))
            found["decoded"] += 1
        except (Refusal, StoreError, ValueError):
            found["refused"] += 1
        except Exception as error:
            found[f"crashed: {type(error).__name__}: {error}"[:100]] += 1
    return found


@benchmark(__doc__, "eager")
@count_option("--inputs", 1_000_000, "How many, of all kinds together.")
def main(run: Run, inputs: int) -> None:
    """Runs the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        kinds = make_inputs(Path(folder)) | make_artifacts(Path(folder))
        others = b"".join(content for content, _ in kinds.values())
        for number, (kind, (content, read)) in enumerate(kinds.items()):
            share = inputs // (10 * len(kinds)) if kind == "pack" else inputs // (len(kinds) - 1) + 1
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            found = fuzz(read, content, others, share, number)
            crashed = {what: count for what, count in found.items() if what.startswith("crashed")}
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            identity = {
                "kind": kind,
                "inputs": share,
                "decoded": found.get("decoded", 0),
                "refused": found.get("refused", 0),
            }
            run.add({**identity, "crashed": crashed, "grown_mb": grown, **({"error": str(crashed)} if crashed else {})})
    columns = {"<kind": pick("kind"), **{name: pick(name) for name in ("inputs", "decoded", "refused")}}
    run.finish("decoders on changed files", {**columns, "grown by MB": pick("grown_mb")})


if __name__ == "__main__":
    main()
