"""What keeps nvFuser's kernels, as far as no GPU is needed: its database, copies of arguments, and refusals."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from drawn_regions import draw
from sample_recipe import make_elf

from fusioncache.backends.nvfuser import persistence
from fusioncache.backends.nvfuser.persistence import CompilingRun, Row, copy_tensor, have_equal_bits, roll_tensor
from fusioncache.backends.nvfuser.recipe import check_cubin
from fusioncache.ir import Declined, NumberType, Scope

OPTIONS = ((), ())


ROWS = {
    name: [Row(name, code, None, OPTIONS) for code in codes]
    for name, codes in {"a": ["code a", "another a"], "b": ["code b"], "d": ["code d", "twice"]}.items()
}


def test_rows_belong_to_a_run_by_name_and_code():
    assert persistence.match_rows(ROWS, ["b", "a"], "code a\ncode b", OPTIONS) == (ROWS["b"][0], ROWS["a"][0])
    assert persistence.match_rows(ROWS, ["a"], "code a", OPTIONS) == (ROWS["a"][0],)


@pytest.mark.parametrize(
    ("names", "code", "options", "reason"),
    [
        (["c"], "code a", OPTIONS, "0 rows"),
        (["a"], "code b", OPTIONS, "0 rows"),
        (["a"], "code a\ncode b", OPTIONS, "not launched"),
        (["a", "a"], "code a", OPTIONS, "one name"),
        (["a"], "code a", ((), ("fma",)), "other options"),
        (["d"], "code d twice", OPTIONS, "2 rows"),
        ([], "code a", OPTIONS, "not launched"),
    ],
)
def test_rows_that_do_not_fit_are_refused(names, code, options, reason):
    with pytest.raises(Declined, match=reason):
        persistence.match_rows(ROWS, names, code, options)


def write_row(name, code, cubin=b"\x7fELF"):
    """What nvFuser does."""
    folder = Path(os.environ["TMPDIR"]) / "nvfuser_kernel_db"
    folder.mkdir(exist_ok=True)
    table = folder / "db.csv"
    text = table.read_text() if table.exists() else "kernel_signature,compile_args,kernel_code_file,cubin_file\n"
    number = text.count("\n") - 1
    (folder / f"kernel_{number}.cu").write_text(code)
    (folder / f"kernel_{number}.cubin").write_bytes(cubin)
    table.write_text(f"{text}{name},--std=c++17 -x,kernel_{number}.cu,kernel_{number}.cubin\n")
    return folder


def test_the_database_is_in_a_directory_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    database = persistence.KernelDatabase()
    folder = database.compile(OPTIONS, lambda: write_row("a", "code a"))
    assert os.environ["TMPDIR"] == str(tmp_path)
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    other = ((), ("fma",))
    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(folder.parent))
        database.compile(other, lambda: write_row("b", "code b", b"PTX"))
    database.note_compiled()
    (found,) = database.rows(["a"], "code a", OPTIONS)
    assert persistence.read_cubin(found) == b"\x7fELF"
    (found,) = database.rows(["b"], "code b", other)
    with pytest.raises(Declined, match="not compiled to the end"):
        persistence.read_cubin(found)
    persistence._remove(folder.parent, os.getpid() + 1)
    assert folder.exists()
    persistence._remove(folder.parent, os.getpid())
    assert not folder.exists()


def test_a_compile_that_fails_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    with pytest.raises(ZeroDivisionError):
        persistence.KernelDatabase().compile(OPTIONS, lambda: 1 / 0)
    assert "TMPDIR" not in os.environ


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 6),
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[:, 1:4],
        torch.randn(7)[3:],
        torch.randn(3, 1).expand(3, 5),
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.randint(0, 9, (5, 5)),
        torch.rand(5, 5) > 0.5,
        torch.randn(4, 6, dtype=torch.bfloat16)[1:, ::2],
    ],
)
def test_copies_lie_as_the_original(tensor):
    before = tensor.clone()
    copy, other = copy_tensor(tensor), roll_tensor(tensor)
    assert have_equal_bits(copy, tensor)
    for moved in (copy, other):
        assert (moved.shape, moved.stride(), moved.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        assert (moved.data_ptr() - tensor.data_ptr()) % 512 == 0
        assert not tensor.numel() or moved.data_ptr() != tensor.data_ptr()
    assert torch.equal(copy, before)
    if tensor.is_contiguous() and tensor.numel():
        assert torch.equal(other.flatten(), tensor.flatten().roll(1))


def test_bits_tell_zeros_apart_and_nans_together():
    assert not have_equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert have_equal_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not have_equal_bits(torch.zeros(2, 3), torch.zeros(3, 2).t())


def test_cubins_must_be_whole():
    image = make_elf()
    check_cubin(image)
    sections, programs = make_elf(sections=((1, 64, 10**6),)), make_elf(programs=((2**63, 8),))
    for damaged in (*(image[:end] for end in range(len(image))), make_elf(machine=62), sections, programs, b"PTX"):
        with pytest.raises(ValueError, match="a cubin that"):
            check_cubin(damaged)


ADD = draw("add(x, 1)", device="cuda")


@pytest.mark.parametrize(
    ("graph", "args", "reason"),
    [
        (draw("add(x, n)", device="cuda", n=NumberType("int")), [None], "a number among the inputs"),
        (draw("uniform_philox(x)", device="cuda"), [None], "random numbers"),
        (replace(ADD, sizes=1), [None], "symbolic sizes"),
        (draw("full((2,), 1.0, device='cuda')", device="cuda"), [], "no input or constant that names the GPU"),
        (ADD, [torch.zeros(2, 3)], "an input that is no CUDA tensor"),
    ],
)
def test_what_cannot_be_kept_is_known_before_it_is_compiled(graph, args, reason):
    with pytest.raises(Declined, match=f"^{reason}$") as refusal:
        persistence.check_persistable(graph, args)
    assert refusal.value.scope is Scope.STORING


class Own(torch.Tensor):
    """Of a type of its own."""


@pytest.mark.parametrize(
    ("arg", "reason"),
    [
        (torch._neg_view(torch.zeros(2, 3)), "negated"),
        (torch.zeros(2, 3, dtype=torch.complex64).conj(), "conjugated"),
        (torch.zeros(2, 3).as_subclass(Own), "no plain tensor"),
        (torch.zeros(2, 3, device="meta"), "several devices"),
    ],
    ids=["negated", "conjugated", "subclass", "device"],
)
def test_what_arguments_are_this_time_is_no_lasting_reason(arg, reason, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: tensor.is_meta)
    with pytest.raises(Declined, match=reason) as refusal:
        persistence.check_tensors([torch.zeros(2, 3), arg])
    assert refusal.value.scope is Scope.STORING_NOW
    persistence.check_tensors([torch.nn.Parameter(torch.zeros(2, 3))])


def test_gpus_of_several_kinds_are_told_apart(monkeypatch):
    kinds = [SimpleNamespace(name=name, multi_processor_count=132, major=9, minor=0) for name in ("b", "a", "b")]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", kinds.__getitem__)
    assert persistence.list_device_kinds() == ("a, 132 SMs, 9.0", "b, 132 SMs, 9.0")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with pytest.raises(Declined, match="several kinds"):
        persistence.check_persistable(ADD, [torch.zeros(2, 3)])


def test_compiling_for_other_arguments_writes_into_them_once():
    compiled = []

    def compile_(graph, args):
        """Runs once when it compiles, as nvFuser does."""
        compiled.append(graph)
        args[0].mul_(2)
        return lambda args: [args[0].mul_(2)]

    arg = torch.ones(2, 3)
    run = CompilingRun(compile_, draw("copy_(x, x)", device="cuda"))
    for expected in (2, 4):
        run([arg])
        assert arg.unique().tolist() == [expected]
    assert len(compiled) == 1
