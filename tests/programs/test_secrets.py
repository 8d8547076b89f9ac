"""Nothing that may be secret is in the files or the output of a run, wherever the model holds it."""

import base64
import gzip
import json
import lzma
import re
import sqlite3
import stat
import zlib
from contextlib import closing

import pytest
from commands import call
from forked_processes import read_output
from repository import HELPERS

from fusioncache.observe.record.database import record_path

SEEDS = ("one", "one", "two")
TEMPLATE = (HELPERS / "secretive_model.py").read_text()
PLANTED = sorted(set(re.findall(r"[Zz]q[a-z]+(?=SEED)|Zq[a-z .]+(?=SEED)|/zq/path/(?=SEED)| made (?=SEED)", TEMPLATE)))
ARGUMENTS = ("--password", "zqshortSEED", "--token=zqlongSEED", "-pzqletterSEED", "zqrestSEED", "--", "--zqbehindSEED")
COMMANDS = (
    *(["report", "-o", "report.html"], ["explain"], ["ls"], ["ls", "--programs"], ["ls", "--store"], ["ls", "--json"]),
    *(["diff"], ["stats", "-v"], ["stats", "--runs", "--json"], ["stats", "--json"], ["verify"], ["dir"]),
)


def list_commands() -> list[list[str]]:
    """Returns all commands that show stored data; those about programs for each program of the model."""
    listed = json.loads(call("ls", "--programs", "--json").stdout)["programs"]
    ids = [one["id"] for one in listed if one["name"] == "Model"]
    assert len(ids) == 2
    about = [command for id_ in ids for command in (["show", id_], ["show", id_, "--json"], ["explain", id_])]
    traces = [["show", ids[0], "--trace", name] for name in ("prologue", "forward", "epilogue")]
    both = [["explain", *ids, "--all"], ["explain", *ids, "--all", "--json"], ["explain", *ids, "--json"]]
    return [*COMMANDS, *about, *traces, *both]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Yields the directory and the output by command of three processes, of which two had the same secrets."""
    folder, home = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("secrets") / "home"
    variables = {"FUSIONCACHE_LOG": str(home / "log.jsonl"), "FUSIONCACHE_EXPLAIN": "1", "FUSIONCACHE_DIR": str(home)}
    home.mkdir(0o700)
    printed = {}
    for number, seed in enumerate(SEEDS):
        (folder / "model_copy.py").write_text(TEMPLATE.replace("SEED", seed))
        arguments = [each.replace("SEED", seed) for each in ARGUMENTS]
        printed[f"run {number}"] = read_output("model_copy", *arguments, folder=folder, **variables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FUSIONCACHE_DIR", str(home))
        patch.chdir(home)
        for command in list_commands():
            result = call(*command)
            assert result.exit_code == 0, (command, result.output)
            printed[" ".join(command)] = result.output
        yield home, printed


def spell(word: str) -> list[bytes]:
    """Returns a word in all encodings in which it may be written."""
    plain = word.encode()
    encoded = [base64.b64encode(b"." * shift + plain)[4 if shift else 0 : -4] for shift in range(3)]
    return [plain, plain.hex().encode(), json.dumps(word)[1:-1].encode(), *(each for each in encoded if len(each) > 4)]


def expand(content: bytes) -> list[bytes]:
    """Returns a content and its decompressed forms."""
    found = [content]
    for open_ in (zlib.decompress, gzip.decompress, lzma.decompress):
        try:
            found.append(open_(content))
        except Exception:
            continue
    return found


def list_blobs(path) -> list[bytes]:
    """Returns all bytes values in a file of sqlite: compressed ones are not in the text of the file."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for table in tables for row in database.execute(f"SELECT * FROM {table}")]
    return [value for row in rows for value in row if isinstance(value, bytes)]


def test_what_holds_a_secret_is_stored_and_loaded_and_tells_secrets_apart(outputs):
    _, printed = outputs
    counts = [re.findall(r"^made (\d) loaded (\d)", printed[f"run {number}"], re.MULTILINE) for number in range(3)]
    assert counts == [[("1", "0")] * 2, [("0", "1")] * 2, [("1", "0")] * 2]
    assert "differs (values hidden)" in printed["run 2"]


def test_no_secret_is_in_a_file_or_printed(outputs):
    home, printed = outputs
    assert len(PLANTED) > 35
    words = [f"{word}{seed}" for word in PLANTED for seed in set(SEEDS)]
    words += [f"zq{word}{seed}" for word in ("short", "long", "letter", "rest", "behind") for seed in set(SEEDS)]
    contents = {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    contents |= {name: text.encode() for name, text in printed.items()}
    blobs = list_blobs(home / record_path().name)
    assert len(blobs) > 1 and len(contents) > 30
    contents |= {f"blob {number} of the record": blob for number, blob in enumerate(blobs)}
    for name, content in contents.items():
        for whole in expand(content):
            found = [word for word in words if any(spelt in whole for spelt in spell(word))]
            assert not found, name


def test_values_are_hidden_and_what_is_no_secret_is_shown(outputs):
    _, printed = outputs
    assert json.loads(printed["stats --json"])["command"].endswith("/model_copy.py --password --token -p")
    for name, text in printed.items():
        assert not re.search(r"hidden (str|bytes) [a-p]{8}", text), name  # no digest of a secret either
    assert "check_string_value(s0, (hidden))" in next(text for name, text in printed.items() if "prologue" in name)
    shown = next(text for name, text in printed.items() if name.startswith("show") and "--json" in name)
    assert "'gelu'" in shown and "'auth_token': (hidden)" in shown


def test_all_files_are_the_owners_alone(outputs):
    home, _ = outputs
    for path in home.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert path.name == "report.html" or mode in (0o700, 0o600), path
