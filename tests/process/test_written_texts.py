"""Texts that are written, the text that replaces all others, and the permissions of files."""

import os
import re
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.observe.record.database import open_for_reading, open_for_writing, record_path
from fusioncache.process import secrets
from fusioncache.process.files import make_folders, open_privately
from fusioncache.process.secrets import TextKind, blur, find_kind, hide_line, hide_texts, list_options, reveal_texts
from fusioncache.process.secrets import write_text as write

pytestmark = pytest.mark.usefixtures("cheap_digests")
DIGEST = re.compile(r"hidden (str|bytes) [a-p]{32}")


WORDS = ["", *["gelu", "bf16", "flash_attention_2", "nearest-exact", "cuda:0", "RMSNorm", "GELU", "10", "0.2.6", "->"]]
NAMES = ["LlamaForCausalLM", "layers.0.attention.weight", "num_attention_heads_per_partition", "_private"]
NEITHER = [
    *("Llama-2-7b", "two words", "https://user:word@host", "AKIAIOSFODNN7EXAMPLE", "hf_AbCdEf123AbCdEf123AbCdEf123"),
    *("123e4567-e89b-12d3-a456-426614174000", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0", "a\nb"),
    *("-----BEGIN KEY-----", "\ud800x" * 3, "0123456789abcdef0123456789abcdef", "x" * 20_000, "sk-proj-abc123"),
    *("hf_abcdef", "a1-b2-c3-d4-e5"),
]


def test_plain_words_are_written_and_names_where_they_are_names():
    for text in WORDS:
        assert write(text) == write(text, TextKind.NAME) == repr(text)
    for text in NAMES:
        assert DIGEST.fullmatch(write(text)) and write(text, TextKind.NAME) == repr(text)
    for text in NEITHER:
        assert DIGEST.fullmatch(write(text)), text
        assert DIGEST.fullmatch(write(text, TextKind.NAME)) or text == "hf_abcdef", text


@pytest.mark.parametrize("kind", [TextKind.SECRET, TextKind.HIDDEN])
def test_nothing_is_written_of_a_secret(kind):
    for value in [*filter(None, WORDS), *NAMES, *NEITHER, b"gelu"]:
        assert DIGEST.fullmatch(write(value, kind)), value


@given(st.text() | st.binary(), st.text() | st.binary(), st.sampled_from(TextKind), st.sampled_from(TextKind))
def test_texts_are_equal_if_and_only_if_values_and_kinds_are(one, other, kind, other_kind):
    if kind is other_kind:
        assert (write(one, kind) == write(other, kind)) == (type(one) is type(other) and one == other)
    elif type(one) is not type(other) or one != other:
        assert write(one, kind) != write(other, other_kind)
    assert write("hunter two") != write("hunter two", TextKind.SECRET)


def test_a_process_takes_its_time_for_some_secrets_only():
    slow = [write(f"number {number}", TextKind.SECRET) for number in range(70)]
    quick = [write(f"number {number}", TextKind.HIDDEN) for number in range(70)]
    assert [one == other for one, other in zip(slow, quick, strict=True)] == [False] * 64 + [True] * 6
    assert slow == [write(f"number {number}", TextKind.SECRET) for number in range(70)]
    write("hunter", TextKind.SECRET)
    assert "hunter" not in hide_texts("  check_string_value(s0, 'hunter')\n  x = obj['hunter']")


def test_names_that_say_it():
    said = "secret password db_passwd api_key apiKey OPENAI_API_KEY HF_TOKEN token auth_token authorization access_key "
    said += "AWS_SECRET_ACCESS_KEY credentials private_key signing_key bearer webhook passphrase pin session_token pwd"
    assert {name: find_kind(name) for name in said.split()} == dict.fromkeys(said.split(), TextKind.SECRET)
    others = "tokenizer author authors pin_memory num_tokens monkey keys activation passes bias name"
    assert {name: find_kind(name) for name in others.split()} == dict.fromkeys(others.split(), TextKind.VALUE)
    assert find_kind("__qualname__") is TextKind.NAME


SOURCE = """# Constructed by Transform for execution (took 4 milliseconds)
import torch

def prologue(*args, **kwargs):
  # args: "Any"
  x: "cpu f32[4, 16]" = args[0]
  t_conv: "cpu f32[16]" = module.get_parameter('Some Conv-1.weight')
  check_tensor_metadata(x, (4, 16), 'cuda:0', torch.float32, False)
  s1: "str" = kwargs['access_key']
  check_string_value(s1, TEXT)
  check_string_value(cache_info_alias_tensor_indices, '0,1 2')
  s2: "str" = obj['Zq an item']

  # /home/me/it's.py:31: \t        return F.silu(self.lin(x), "Zq line", 'mean')  # Zq remark
  return (x, TEXT)
"""


@given(st.text(min_size=1, max_size=30) | st.binary(min_size=1, max_size=9), st.booleans())
def test_a_source_holds_no_text_when_it_is_stored_and_holds_it_when_it_is_loaded(value, is_secret):
    secrets.forget()
    digest = write(value, TextKind.SECRET if is_secret else TextKind.VALUE)
    write("Zq an item", TextKind.NAME)
    stored = hide_texts(SOURCE.replace("TEXT", repr(value)))
    assert "Zq" not in stored and stored.count(repr(digest) if DIGEST.fullmatch(digest) else digest) >= 2
    shown = SOURCE.replace("TEXT", repr(value)).replace("\"Zq line\", 'mean')  # Zq remark", "'...', 'mean')")
    assert reveal_texts(stored) == shown
    secrets.forget()
    with pytest.raises(ValueError, match="has a string that this process did not describe"):
        reveal_texts(stored)


LONG = "x " * 10_000
UNDESCRIBED = {
    "not described": ("check_string_value(s0, 'Zq made while it was derived')", "that is not stored"),
    "made while it runs": ("f(x, f'Zq {y}')", "that is made while it runs"),
    "too long": (f"f({LONG!r})", "that is not stored"),
    "beside a number": ("f(float('NaN'), 'Zq NaN')", "that is not stored"),
}


@pytest.mark.parametrize(("source", "why"), UNDESCRIBED.values(), ids=UNDESCRIBED)
def test_what_was_not_described_is_not_stored(source, why):
    write(LONG)
    with pytest.raises(ValueError, match=f"has a string {why}"):
        hide_texts(f"  {source}")


def test_numbers_without_a_literal_are_no_texts():
    source = "  check_number_type_and_value(f0, float('NaN'), float('inf'), -float('inf'))"
    assert hide_texts(source) == source


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("x = F.gelu(x, approximate='tanh')  # the key is Zq", "x = F.gelu(x, approximate='tanh')"),
        ("if self.mode == 'Zq x' or self.mode == \"mean\":", "if self.mode == '...' or self.mode == \"mean\":"),
        ("if password == 'hunter':", "if password == '...':"),
        ('f(f"{d["hunter"]}") + 1', "f(..."),
        ("f(b'Zq x', r'Zq\\'x', '#') + 1", "f('...', '...', '#') + 1"),
        ('f("""Zq', "..."),
        ('Zq""")', "..."),
        ("f('Zq \\", "f(..."),
        ("return x + 1", "return x + 1"),
    ],
)
def test_a_line_of_source_is_shown_without_its_texts(line, shown):
    assert hide_line(line) == shown


_PARTS = st.text("ab'\"#\\ {}", max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["", "b", "x = "]), _PARTS, _PARTS), max_size=4), _PARTS)
def test_no_line_of_source_shows_a_part_of_a_text(texts, comment):
    line = f"f({', '.join(f'{before}{f"{one}Zq 9{other}"!r}' for before, one, other in texts)})  # {comment}Zq 9"
    assert "Zq" not in hide_line(line)
    assert "Zq" not in hide_line(line[: len(line) // 2])


def test_people_see_no_digest():
    digest = write("two words")
    assert blur(f"{{'a': {digest}, }} [{digest!r}] {digest[:20]}...") == "{'a': (hidden), } [(hidden)] (hidden)..."


def test_a_command_line_keeps_its_script_and_the_names_of_options():
    given = ["train.py", "--token=Zq", "--lr", "0.1", "Zq", "-pZq", "-v", "model.key=Zq", "--a b", "--", "--Zq"]
    assert list_options(given) == ("train.py", "--token", "--lr", "-p", "-v")
    assert list_options([]) == () and list_options(["-c"]) == ("-c",)
    assert list_options(["ipykernel_launcher.py", "-f", "/run/kernel-Zq.json"]) == ("ipykernel_launcher.py", "-f")


@pytest.fixture(autouse=True)
def _usual_mask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder):
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_files_of_sqlite_are_private_while_they_are_written_and_afterwards(tmp_path):
    with open_for_writing(tmp_path / "new") as database:
        database.execute("INSERT INTO records VALUES (0, '', 0, '')")
        assert modes(tmp_path) == {"new": 0o600, "new-journal": 0o600}
    assert modes(tmp_path) == {"new": 0o600}


def test_files_that_others_could_read_are_narrowed_when_they_are_opened(tmp_path, monkeypatch):
    path = tmp_path / "old"
    with open_for_writing(path):
        pass
    for open_file, mode in ((open_for_reading, 0o644), (open_for_writing, 0o666)):
        path.chmod(mode)
        with open_file(path):
            assert modes(tmp_path)["old"] == 0o600
    monkeypatch.setenv("FUSIONCACHE_DIR", str(tmp_path))
    (tmp_path / "record-12.sqlite").touch()  # of another version
    with open_for_writing(record_path()):
        assert modes(tmp_path)["record-12.sqlite"] == modes(tmp_path)[record_path().name] == 0o600


def test_what_is_deleted_is_not_left_in_the_file(tmp_path):
    path = tmp_path / "file"
    with open_for_writing(path) as database:
        database.execute("INSERT INTO records VALUES (0, '', 0, ?)", ("zqword" * 1000,))
    assert b"zqword" in path.read_bytes()
    with open_for_writing(path) as database:
        database.execute("DELETE FROM records")
    assert b"zqword" not in path.read_bytes()


def test_folders_and_files_are_made_for_their_owner(tmp_path):
    make_folders(tmp_path / "a" / "b")
    with open(tmp_path / "a" / "file", "a", opener=open_privately) as file:
        file.write("x")
    assert modes(tmp_path) == {"a": 0o700} and modes(tmp_path / "a") == {"b": 0o700, "file": 0o600}
