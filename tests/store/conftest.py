"""What several tests of the store start from."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_contents import NOBODY


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights can reach, and has."""
    path = Path(tempfile.mkdtemp()).resolve()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)
