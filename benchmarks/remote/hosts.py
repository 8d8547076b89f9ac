"""Hosts of a job, each with a store of its own, and the processes of each host.

The processes load the entries of a model, as a transform would. For a missing entry they sleep, in place of compiling,
and save. This module also runs with an earlier state of the package, so it uses only names that both states have.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.common.processes import serve
from fusioncache.ir import Ingredient, Key
from fusioncache.store import Store

_BACKEND = "nvfuser"


def make_key(name: str, number: int) -> Key:
    """Returns a key as long as a small template's."""
    text = (f"{name} {number}\n" * 400)[:4000]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Key(digest, text, (Ingredient("ops", text, digest),))


def fill(store: Store, entries: int, size: int) -> None:
    """Saves the entries of a model, with three artifacts each."""
    chance = random.Random(0)
    for number in range(entries):
        artifacts = {name: chance.randbytes(size) for name in ("cubin", "request", "region")}
        assert store.save(make_key("model", number), _BACKEND, artifacts, name=f"template_{number}", seconds=1.0)


def push(store: Store, url: str) -> Any:
    """Uploads the entries of a store, unsigned."""
    try:
        from fusioncache.cache.exchange import push as push_packs
        from fusioncache.store.remote import Remote

        return push_packs(store, Remote(url))
    except ImportError:
        from fusioncache.store import remote

        return remote.push(store, remote.Remote(url))  # type: ignore[attr-defined]


def fill_remote(argument: Mapping[str, Any]) -> dict[str, float]:
    """Uploads a model from several hosts at once. Returns the numbers of entries, of hosts and of failures."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        stores = [Store.open(Path(folder, str(number)), remote="") for number in range(argument["hosts"])]
        for store in stores:
            fill(store, argument["entries"], argument["size"])
        start = time.perf_counter()
        with ThreadPoolExecutor(len(stores)) as pool:
            results = list(pool.map(lambda store: _try(lambda: push(store, argument["url"])), stores))
        uploaded = [result.entries for result in results if not isinstance(result, Exception)]
        return {
            "entries": sum(uploaded),
            "hosts": sum(map(bool, uploaded)),
            "failed": len(results) - len(uploaded),
            "seconds": time.perf_counter() - start,
        }


def _try(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def start_hosts(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Starts hosts at random times. Returns for each of their processes the seconds and the compilations.

    Hosts and processes are forks of this process, which has imported the S3 client and has no other thread.
    """
    warnings.simplefilter("ignore")
    import_module("s3fs")
    chance, began = random.Random(0), time.monotonic()
    arrivals = sorted(chance.uniform(0.0, argument["within"]) for _ in range(argument["hosts"]))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        waiting = []
        for number, arrival in enumerate(arrivals):
            time.sleep(max(began + arrival - time.monotonic(), 0.0))
            waiting.append(_fork(partial(_start_host, Path(folder, str(number)), argument)))
        for child in waiting:
            os.waitpid(child, 0)
        answers = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {"processes": answers}


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    finally:
        os._exit(0)


def _start_host(folder: Path, argument: Mapping[str, Any]) -> None:
    answers = [folder.with_name(f"{folder.name}-{number}.json") for number in range(argument["processes"])]
    for child in [_fork(partial(_start_process, folder, answer, argument)) for answer in answers]:
        os.waitpid(child, 0)


def _start_process(folder: Path, answer: Path, argument: Mapping[str, Any]) -> None:
    """Loads a model in one process, and measures the seconds for which it waits for loads."""
    store = Store.open(folder, remote=argument["url"])
    time.sleep(argument["import_seconds"])  # importing torch and the model, while the index is fetched
    waited, compiled = 0.0, 0
    for number in range(argument["entries"]):
        key = make_key("model", number)
        start = time.perf_counter()
        loaded = store.load(key, _BACKEND)
        waited += time.perf_counter() - start
        if loaded is None:
            with store.take_turn(key, _BACKEND) as turn:
                if turn.artifacts is None:
                    compiled += 1
                    time.sleep(argument["compile_seconds"])
                    store.save(key, _BACKEND, {"cubin": b"x" * argument["size"]}, name="template", seconds=1.0)
    reasons = list(store.bypasses)
    answer.write_text(json.dumps({"seconds": waited, "compiled": compiled, "reasons": reasons}))


if __name__ == "__main__":
    serve(lambda argument: (fill_remote if argument["fills"] else start_hosts)(argument))
