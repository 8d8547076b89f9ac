"""A real S3 server (moto) that can be slow, lose answers, throttle or be full, as a benchmark configures it.

``python -m benchmarks.remote.server PORT`` serves until it is ended. ``PUT /-/faults`` sets the faults of the next
requests from JSON, and ``GET /-/counts`` returns the counts since then.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_FULL = b"<Error><Code>QuotaExceeded</Code><Message>The bucket is full.</Message></Error>"

Start = Callable[..., Any]


class Faults:
    """WSGI middleware that adds faults to a server.

    Args:
        app: the WSGI application of the server.

    Attributes:
        faults: ``latency`` in seconds; ``lost``, the share of lost answers; ``most``, the number of requests per second
            above which it throttles; and ``full``, whether the bucket is full.
        counts: requests by method, bytes sent, and requests ``lost`` or ``throttled``.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]]):
        self._app = app
        self._lock = threading.Lock()
        self._recent: deque[float] = deque()
        self.counts: Counter[str] = Counter()
        self.faults: dict[str, float] = {}

    def __call__(self, environ: Mapping[str, Any], start: Start) -> Iterable[bytes]:
        """Answers a request, as WSGI specifies."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path == "/-/faults":
            self.faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self.counts.clear()
            return _answer(start, "200 OK", b"")
        if path == "/-/counts":
            return _answer(start, "200 OK", json.dumps(self.counts).encode())
        with self._lock:
            self.counts[method] += 1
        time.sleep(self.faults.get("latency", 0.0) * random.uniform(0.5, 1.5))
        refused = self._refuse(method)
        if refused:
            return _answer(start, "503 Slow Down" if refused is _SLOW_DOWN else "403 Forbidden", refused)
        body = b"".join(self._app(environ, start))
        with self._lock:
            self.counts["bytes"] += len(body)
        return [body]

    def _refuse(self, method: str) -> bytes | None:
        if random.random() < self.faults.get("lost", 0.0):
            with self._lock:
                self.counts["lost"] += 1
            time.sleep(30.0)  # longer than any client waits
            return _SLOW_DOWN
        if self.faults.get("full") and method == "PUT":
            return _FULL
        with self._lock:
            now = time.monotonic()
            while self._recent and self._recent[0] < now - 1.0:
                self._recent.popleft()
            if len(self._recent) >= self.faults.get("most", float("inf")):
                self.counts["throttled"] += 1
                return _SLOW_DOWN
            self._recent.append(now)
        return None


def _answer(start: Start, status: str, body: bytes) -> list[bytes]:
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main(port: int) -> None:
    """Serves on localhost only."""
    import logging

    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Faults(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
