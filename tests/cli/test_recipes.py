"""The recipes of docs/sharing.md, line by line, with a folder in place of the bucket.

``python train.py`` is a process of its own, and each recipe is another machine: it has no file of the one before. The
container image runs ``fusioncache unpack``.
"""

import re
import shlex
import shutil
from pathlib import Path

import forked_processes as forks
import pytest
from commands import call
from documents import read_blocks
from repository import DOCS

PAGE = DOCS / "sharing.md"


class Machine:
    """Runs the lines of a recipe, with ``variables`` that are set before, and other folders in its ``places``."""

    def __init__(self, home: Path, variables: dict[str, str], places: dict[str, str], patch: pytest.MonkeyPatch):
        home.mkdir()
        self._home, self._places, self._patch = home, places, patch
        self._own = {"PWD": str(home), "TMPDIR": str(home), **variables}
        self._set: dict[str, str] = {}

    def run(self, lines: list[str]) -> list[str]:
        """Returns what the lines print."""
        for name in ("FUSIONCACHE_STORE", "FUSIONCACHE_TRUST", "FUSIONCACHE_REMOTE", "FUSIONCACHE_SIGNING_KEY"):
            self._patch.delenv(name, raising=False)
        return [said for line in lines if (said := self._run(line)) is not None]

    def _run(self, line: str) -> str | None:
        for place, there in self._places.items():
            line = line.replace(place, there)
        line = re.sub(r"\$(\w+)", lambda name: shlex.quote(self._own[name[1]]).strip("'"), line)
        kind, _, rest = line.partition(" ")
        if kind in ("export", "ENV"):
            name, _, value = rest.partition("=")
            self._set[name] = value
            self._patch.setenv(name, value)
            return None
        words = shlex.split(rest if kind == "RUN" else line, comments=True)
        if words[0] == "fusioncache":
            done = call(*words[1:])
            assert done.exit_code == 0, done.output
            return done.output
        assert words == ["python", "train.py"]
        return forks.ask("recipe_model", **self._set)


@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_ci_fills_a_bucket_that_a_job_with_its_key_reads_and_an_image_ships_a_pack(tmp_path, monkeypatch):
    ci, job = read_blocks("bash", PAGE)
    (image,) = read_blocks("dockerfile", PAGE)
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "keys"))
    public = call("keys", "new", "ci").stdout.strip()
    variables = {"SECRET": (tmp_path / "keys" / "keys" / "own").read_text().strip(), "CI_KEY": public}
    places = {"s3://bucket/fusioncache": str(tmp_path / "bucket"), "/tmp/llama.fcpack": str(tmp_path / "pack")}
    places["/opt/fusioncache"] = str(tmp_path / "image" / "cache")

    made, pushed = Machine(tmp_path / "ci", variables, places, monkeypatch).run(ci.splitlines())
    compiled, programs, *rest, total = made.splitlines()[-1].split()
    assert (compiled, programs, rest) == ("1", "1", ["{}", "{}"])
    assert pushed.startswith("pushed ")
    assert call("pack", "--model", "wave", "-o", str(tmp_path / "pack")).exit_code == 0

    (loaded,) = Machine(tmp_path / "job", variables, places, monkeypatch).run(job.splitlines())
    assert re.search(rf"^0 0 \{{'FUSIONCACHE_TRUST \({public[:16]}\)': \d+\}} \{{\}} {total}$", loaded, re.MULTILINE)

    lines = [line for line in image.splitlines() if not line.startswith("COPY ")]
    container = Machine(tmp_path / "image", variables, places, monkeypatch)
    (brought,) = container.run(lines)
    assert brought.startswith("brought ")
    (ran,) = container.run([*lines[:2], "python train.py"])
    assert ran.splitlines()[-1] == f"0 0 {{}} {{}} {total}"
