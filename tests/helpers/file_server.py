"""An HTTP server of the files in a folder, without support for ranges."""

import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Handler(SimpleHTTPRequestHandler):
    """Serves files, logs nothing, and answers 500 for the path ``broken``."""

    broken: str | None = None

    def log_message(self, *args: Any) -> None:
        pass

    def send_head(self) -> Any:
        if self.path.rstrip("/") == Handler.broken:
            return self.send_error(500)
        return super().send_head()


@contextmanager
def serve(folder, handler=Handler):
    pytest.importorskip("aiohttp")
    folder.mkdir()
    Handler.broken = None
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
