"""Measures the requests to a remote when a job starts on many hosts, the waits of processes, and repeated compilations.

An S3 server runs on this machine. Each host is a process with a store of its own, which starts eight processes that
load a model. The server and all of them share the cores of this machine, so hosts start over several minutes. With
``--base`` an earlier state of the package does the same with fewer hosts.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import click

from benchmarks.common import processes
from benchmarks.common.options import count_option
from benchmarks.common.processes import ROOT
from benchmarks.common.runner import Point, Run, benchmark, pick

FAULTS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "latency": {"latency": 0.1},
    "slow": {"latency": 1.5},
    "loss": {"latency": 0.02, "lost": 0.1},
    "throttling": {"latency": 0.02, "most": 20},
    "full": {"latency": 0.02, "full": 1},
}
"""Faults of the server, by name."""
_HOSTS = Path(__file__).with_name("hosts.py")
_EXACT = {"entries": 10, "size": 10_000, "processes": 8, "import_seconds": 1.0, "compile_seconds": 0.02}


@contextmanager
def serve() -> Iterator[str]:
    """Yields the address of an S3 server with an empty bucket."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.remote.server", str(port)], cwd=ROOT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                _ask(address, "/bucket", "PUT")
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def _ask(address: str, path: str, method: str = "GET", body: bytes | None = None) -> bytes:
    with urlopen(Request(address + path, data=body, method=method), timeout=60) as answer:
        return bytes(answer.read())


def measure(address: str, state: Path, faults: str, hosts: int, within: float, pushing: int = 1) -> dict[str, Any]:
    """Returns the requests, waits and compilations of hosts at a server with these faults.

    Args:
        address: of the server.
        state: the checkout of the package.
        faults: of the server.
        hosts: number of hosts.
        within: the seconds within which they start.
        pushing: number of hosts that push the model at once beforehand; with 0 the hosts compile.
    """
    environment = {
        **{"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"},
        **{"AWS_DEFAULT_REGION": "us-east-1", "FUSIONCACHE_TRUST": "unsigned"},
    }
    url = f"s3://bucket/{state.name}-{faults}-{hosts}-{pushing}"
    argument = {**_EXACT, "url": url, "hosts": hosts, "within": within}
    where: dict[str, Any] = {"environment": environment, "root": state}
    _ask(address, "/-/faults", "PUT", b"{}")
    pushed = processes.call(_HOSTS, {**argument, "fills": True, "hosts": pushing}, **where) if pushing else {}
    _ask(address, "/-/faults", "PUT", json.dumps(FAULTS[faults]).encode())
    found = processes.call(_HOSTS, {**argument, "fills": False}, **where)["processes"]
    counts = json.loads(_ask(address, "/-/counts"))
    if "full" in FAULTS[faults]:
        again = {**argument, "url": f"{url}-again", "fills": True, "hosts": 3}
        pushed |= {"failed": processes.call(_HOSTS, again, **where)["failed"]}
    seconds = sorted(one["seconds"] for one in found)
    return {
        "requests": sum(counts.get(method, 0) for method in ("GET", "HEAD", "PUT")),
        "requests_per_host": sum(counts.get(method, 0) for method in ("GET", "HEAD", "PUT")) / hosts,
        "bytes": counts.get("bytes", 0),
        "median_seconds": seconds[len(seconds) // 2],
        "p99_seconds": seconds[int(0.99 * (len(seconds) - 1))],
        "compiled": sum(one["compiled"] for one in found),
        "compiled_per_host": sum(one["compiled"] for one in found) / hosts,
        "pushed": pushed,
        "reasons": Counter(reason for one in found for reason in one["reasons"]),
    }


@benchmark(__doc__, "eager")
@count_option("--hosts", 1000, "How many start.")
@count_option("--base-hosts", 3, "How many with the earlier state, whose processes ask for each file.")
@click.option("--rate", default=1.5, help="Hosts that start in a second: as many as the cores here can serve.")
@click.option("--faults", default=",".join(FAULTS), help="Which to try, with commas.")
@click.option("--base", type=click.Path(path_type=Path), help="A checkout of an earlier state.")
def main(run: Run, hosts: int, base_hosts: int, rate: float, faults: str, base: Path | None) -> None:
    """Runs the benchmark."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        raise click.ClickException('it needs an S3 server and its client: pip install "fusioncache[s3]" "moto[server]"')
    with serve() as address:
        for name in faults.split(","):
            for way, state, count in (("base", base, base_hosts), ("now", ROOT, hosts)):
                if state is not None:
                    identity: Point = {"way": way, "faults": name, "hosts": count}
                    pushing = 20 if way == "now" else 1
                    run.add({**identity, **measure(address, state, name, count, count / rate, pushing)})
        found = measure(address, ROOT, "none", hosts, hosts / rate, pushing=0)
        run.add({"way": "now", "faults": "empty", "hosts": hosts, **found})
    columns = {name: pick(name) for name in ("way", "faults", "hosts", "requests_per_host", "compiled_per_host")}
    seconds = {name: pick(name, digits=3) for name in ("median_seconds", "p99_seconds")}
    run.finish(f"{hosts} hosts of {_EXACT['processes']} processes", {**columns, **seconds, "MB": _write_megabytes})


def _write_megabytes(point: Point) -> str:
    return f"{point['bytes'] / 1e6:.1f}"


if __name__ == "__main__":
    main()
