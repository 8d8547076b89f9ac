"""What the process that starts a run tells the pytest plugins: one JSON file, named by an environment variable.

Imported inside pytest's workers before anything else, so that it needs nothing but the standard library.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

VARIABLE = "FUSIONCACHE_THUNDER_SUITE"


@dataclass(frozen=True)
class Selection:
    """Which tests of a file run.

    Attributes:
        pattern: a regular expression to be found in a test's name.
        sample: every how many of those tests, in the order of their ids, one runs.
        leave: a regular expression; tests with it in their names do not run.
    """

    pattern: str = ""
    sample: int = 1
    leave: str = ""


@dataclass(frozen=True)
class Settings:
    """One run of pytest.

    Attributes:
        results: the file that gets a line of JSON for each event.
        inject: the backend of fusioncache, or None for a run without it.
        files: what to select of each file, by its name.
        only: if not empty, the ids of the tests to run; ``files`` is not asked then.
    """

    results: str
    inject: str | None = None
    files: dict[str, Selection] = field(default_factory=dict)
    only: list[str] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """For ``read`` in another process."""
        file.write_text(json.dumps(asdict(self)))


def read() -> Settings | None:
    """The settings of this process, or None where nobody gave it any."""
    file = os.environ.get(VARIABLE)
    if not file:
        return None
    found = json.loads(Path(file).read_text())
    found["files"] = {name: Selection(**selection) for name, selection in found["files"].items()}
    return Settings(**found)
