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


def run_recipe(
    lines: list[str], home: Path, variables: dict[str, str], places: dict[str, str], patch: pytest.MonkeyPatch
) -> list[str]:
    """Returns what the lines print, with ``variables`` that are set before, and other folders in their ``places``."""
    home.mkdir(exist_ok=True)
    known, exported, said = {"PWD": str(home), "TMPDIR": str(home), **variables}, dict[str, str](), []
    for name in ("FUSIONCACHE_STORE", "FUSIONCACHE_TRUST", "FUSIONCACHE_REMOTE", "FUSIONCACHE_SIGNING_KEY"):
        patch.delenv(name, raising=False)
    for line in lines:
        for place, there in places.items():
            line = line.replace(place, there)
        line = re.sub(r"\$(\w+)", lambda name: shlex.quote(known[name[1]]).strip("'"), line)
        kind, _, rest = line.partition(" ")
        words = shlex.split(rest if kind == "RUN" else line, comments=True)
        if kind in ("export", "ENV"):
            name, _, exported[name] = rest.partition("=")
            patch.setenv(name, exported[name])
        elif words[0] == "fusioncache":
            done = call(*words[1:])
            assert done.exit_code == 0, done.output
            said.append(done.output)
        else:
            assert words == ["python", "train.py"]
            said.append(forks.ask("recipe_model", **exported))
    return said


@pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")
def test_ci_fills_a_bucket_that_a_job_with_its_key_reads_and_an_image_ships_a_pack(tmp_path, monkeypatch):
    ci, job = read_blocks("bash", PAGE)
    (image,) = read_blocks("dockerfile", PAGE)
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path / "keys"))
    public = call("keys", "new", "ci").stdout.strip()
    variables = {"SECRET": (tmp_path / "keys" / "keys" / "own").read_text().strip(), "CI_KEY": public}
    places = {"s3://bucket/fusioncache": str(tmp_path / "bucket"), "/tmp/llama.fcpack": str(tmp_path / "pack")}
    places["/opt/fusioncache"] = str(tmp_path / "image" / "cache")

    made, pushed = run_recipe(ci.splitlines(), tmp_path / "ci", variables, places, monkeypatch)
    compiled, programs, *rest, total = made.splitlines()[-1].split()
    assert (compiled, programs, rest) == ("1", "1", ["{}", "{}"])
    assert pushed.startswith("pushed ")
    assert call("pack", "--model", "wave", "-o", str(tmp_path / "pack")).exit_code == 0

    (loaded,) = run_recipe(job.splitlines(), tmp_path / "job", variables, places, monkeypatch)
    assert re.search(rf"^0 0 \{{'FUSIONCACHE_TRUST \({public[:16]}\)': \d+\}} \{{\}} {total}$", loaded, re.MULTILINE)

    lines = [line for line in image.splitlines() if not line.startswith("COPY ")]
    brought, ran = run_recipe([*lines, "python train.py"], tmp_path / "image", variables, places, monkeypatch)
    assert brought.startswith("brought ")
    assert ran.splitlines()[-1] == f"0 0 {{}} {{}} {total}"

    # The same job with a key that it does not trust.
    others = {**variables, "CI_KEY": "0" * 64}
    (said,) = run_recipe(job.splitlines(), tmp_path / "other", others, places, monkeypatch)
    assert re.search(r"^1 1 \{\} \{'signed by a key that is not trusted': \d+\}", said, re.MULTILINE)
