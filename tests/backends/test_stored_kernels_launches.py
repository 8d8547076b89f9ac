"""Launches of stored nvFuser kernels: what the driver is told, for which arguments, and what a run gives back."""

import ctypes
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from fake_driver import fake_driver
from sample_recipe import FLAT, NAME, RECIPE, make_elf, make_launch, pack_words

from fusioncache.backends.nvfuser import stored_run
from fusioncache.backends.nvfuser.driver import DriverError
from fusioncache.backends.nvfuser.recipe import Fresh, Input, Layout, Pointer, Recipe, View
from fusioncache.backends.nvfuser.stored_run import StoredRun


class Library:
    """A driver's library that loads anything, and writes down what is launched.

    Args:
        codes: the results of the first launches and fills.
        sizes: of the parameters of each function.
        refused: devices on which nothing loads.
    """

    def __init__(self, codes=(), sizes=(16, 24, 1), refused=()):
        self.codes, self.sizes, self.refused = list(codes), list(sizes), refused
        self.log, self.bound, self.loads = [], [], []
        self.driver = fake_driver(
            cuDeviceGet=lambda device: (0, device),
            cuDevicePrimaryCtxRetain=lambda device: (0, device),
            cuCtxSetCurrent=lambda device: (self.bound.append(device) or 0,),
            cuThreadExchangeStreamCaptureMode=lambda mode: (0, mode),
            cuModuleLoadData=self.load,
            cuModuleGetFunction=lambda module, name: (0, module) if name == NAME.encode() else (500, None),
            cuFuncGetParamInfo=lambda _, index: (0, 0, self.sizes[index]) if self.sizes[index:] else (1, None, None),
            cuFuncGetAttribute=lambda which, function: (0, 49152),
            cuMemsetD8Async=lambda *args: self.answer("fill", *args),
            cuLaunchKernelEx=self.launch,
        )

    def load(self, image):
        self.loads.append(self.bound[-1])
        return (209, None) if self.bound[-1] in self.refused else (0, len(image))

    def launch(self, config, function, parameters, extra):
        places = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
        content = [ctypes.string_at(place, size) for place, size in zip(places, self.sizes, strict=True)]
        grid = config.gridDimX, config.gridDimY, config.gridDimZ
        block = config.blockDimX, config.blockDimY, config.blockDimZ
        attributes = [(item.id, item.value.cooperative) for item in config.attrs]
        assert (len(attributes), extra) == (config.numAttrs, 0)
        how = grid, block, config.sharedMemBytes, int(config.hStream), attributes
        return self.answer("launch", int(function), *how, content)

    def answer(self, *call):
        self.log.append(call)
        return (self.codes.pop(0) if self.codes else 0,)


ARGS = [0x1000, 0x2002]


@pytest.fixture(name="make_run")
def _make_run(monkeypatch):
    """Returns what makes runs of the sample recipe that are given addresses in place of tensors."""
    monkeypatch.setattr(stored_run, "data_ptr", lambda address: address)
    monkeypatch.setattr(stored_run, "_get_device", lambda address: 0)
    monkeypatch.setattr(stored_run, "_current_device", lambda: 0)
    recipe = replace(RECIPE, outputs=())

    def make(library, *, stream=5, allocations=(0x3000, 0x4000)):
        monkeypatch.setattr(stored_run, "_current_stream", lambda device: stream)
        given = iter(allocations)
        monkeypatch.setattr(stored_run.guards, "_empty_strided_cuda", lambda *layout: next(given))
        return StoredRun(recipe, {"0.cubin": make_elf()}, lambda args: "compiled", library.driver, 0).run

    return make


def test_a_launch_says_where_everything_lies(make_run):
    library = Library()
    run = make_run(library, allocations=(0x3000, 0x4000, 0x5000, 0x6000))
    assert run(ARGS) == []
    content = [pack_words(0x1000) + b"\x04\0\0\0\x08\0\0\0", pack_words(0, 0x3040, 0), b"\x05"]
    function = len(make_elf())
    expected = ("launch", function, (7, 2, 1), (128, 1, 1), 16, 5, [(2, 1)], content)
    assert library.log == [("fill", 0x4000, 0, 256, 5), expected]
    library.log.clear()
    run([0x9000, 0x2002])
    content = [pack_words(0x9000) + b"\x04\0\0\0\x08\0\0\0", pack_words(0, 0x5040, 0), b"\x05"]
    assert library.log == [("fill", 0x6000, 0, 256, 5), (*expected[:-1], content)]


def test_a_first_step_that_fails_is_told_from_others(make_run, caplog):
    assert make_run(Library([1]))(ARGS) == "compiled"
    assert "CUDA_ERROR_INVALID_VALUE (1), as a test says" in caplog.text
    with pytest.raises(DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        make_run(Library([0, 700]))(ARGS)
    with pytest.raises(DriverError, match=r"unknown error \(7777\)"):
        make_run(Library([0, 7777]))(ARGS)


def test_a_cubin_with_other_parameters_is_refused(make_run, caplog):
    assert make_run(Library(sizes=[16, 24]))(ARGS) == "compiled"
    assert "other parameters" in caplog.text


def test_a_recipe_without_its_cubin_is_refused():
    with pytest.raises(ValueError, match=r"without its cubin 0\.cubin"):
        StoredRun(RECIPE, {}, list, None, 0)


IN_PLACE = Recipe(
    inputs=(Input(FLAT, 16),),
    allocations=(),
    outputs=(View(FLAT, 0, 0, True), View(Layout("float32", (8,), (1,)), 0, 8, False)),
    steps=(make_launch(parameters=(bytes(8),), pointers=(Pointer(0, 0, 0, 0),)),),
    widest=16,
)


def load_stored(monkeypatch, library):
    """A run on device 0 unless a tensor has an attribute that says otherwise."""
    monkeypatch.setattr(stored_run, "_get_device", lambda tensor: getattr(tensor, "device_number", 0))
    current = [0]

    @contextmanager
    def change_device(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(stored_run, "_current_device", lambda: current[-1])
    monkeypatch.setattr(stored_run, "_current_stream", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "device", change_device)
    artifacts = {"0.cubin": make_elf(), "kernels.cu": b"for people, so that nothing looks at it"}
    return StoredRun(IN_PLACE, artifacts, lambda args: "compiled", library.driver, 0).run


def make_flat(off=0):
    """A tensor in the layout of the recipe, so many elements behind an aligned address."""
    memory = torch.zeros(64)
    first = -memory.data_ptr() % 16 // 4
    return memory[first + off :][:32].view(4, 8)


def test_a_kernel_is_not_launched_on_what_is_aligned_otherwise(monkeypatch):
    library = Library(sizes=[8])
    run = load_stored(monkeypatch, library)
    for off in (1, 2, 3, 5):
        assert run([make_flat(off)]) == "compiled"
    assert not library.log
    for off in (0, 4):
        arg = make_flat(off)
        assert run([arg])[0] is arg
        assert library.log.pop()[-1] == [pack_words(arg.data_ptr())]


def test_a_thread_launches_while_another_one_does(monkeypatch):
    library = Library(sizes=[8])
    run = load_stored(monkeypatch, library)
    first, second = make_flat(), make_flat()
    begun, free = threading.Event(), threading.Event()

    def launch_slowly(*_):
        begun.set()
        assert free.wait(30)
        return 0

    run([first])  # the cubin is loaded by whoever comes first
    with monkeypatch.context() as patch:
        patch.setattr(library, "answer", lambda *call: library.log.append(call) or (launch_slowly(),))
        other = threading.Thread(target=run, args=([second],))
        other.start()
        assert begun.wait(30)
        patch.setattr(library, "answer", Library.answer.__get__(library))
        run([first])
        free.set()
        other.join()
    words = [pack_words(each.data_ptr()) for each in (first, second, first)]
    assert [call[-1] for call in library.log] == [[each] for each in words]
    assert library.loads == [0]


def test_a_device_on_which_nothing_loads_or_launches_gets_what_is_compiled(monkeypatch, caplog):
    library = Library(sizes=[8], refused={1})
    run = load_stored(monkeypatch, library)
    other = make_flat()
    other.device_number = 1
    assert [run([other]), run([other])] == ["compiled", "compiled"]
    assert library.loads == [1]
    run([make_flat()])
    assert [entry[0] for entry in library.log] == ["launch"]
    library.codes.append(1)
    assert [run([make_flat()]), run([make_flat()])] == ["compiled", "compiled"]
    assert len(library.log) == 2
    assert len(caplog.records) == 2


def test_what_has_no_inputs_is_launched_on_the_gpu_that_its_region_names(monkeypatch):
    library = Library(sizes=[8])
    load_stored(monkeypatch, library)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "device", lambda *name: "cpu")
    launch = make_launch(parameters=(bytes(8),), pointers=(Pointer(0, 0, 0, 0),))
    recipe = Recipe((), (FLAT.extent,), (Fresh(FLAT, 0, 0),), (launch,), 16)
    otherwise = lambda args: "compiled"  # noqa: E731
    run = StoredRun(recipe, {"0.cubin": make_elf()}, otherwise, library.driver, 1, poison=True).run
    (output,) = run([])
    assert (output.shape, library.loads) == (FLAT.shape, [1])
    assert library.log.pop()[-1] == [pack_words(output.data_ptr())]
    library.codes.append(1)
    assert run([]) == "compiled"


def test_outputs_in_the_memory_of_an_input_are_unknown_to_autograd(monkeypatch):
    run = load_stored(monkeypatch, Library(sizes=[8]))
    arg = make_flat().requires_grad_()
    same, view = run([arg])
    assert same is arg
    assert not view.requires_grad
    assert view.data_ptr() == arg.data_ptr() + 32


@pytest.mark.parametrize(
    ("addresses", "fit"),
    [([16, 2], True), ([0, 6], True), ([8, 2], False), ([16, 4], False), ([16, 1], False), ([24, 2], False)],
)
def test_addresses_must_be_aligned_as_captured(make_run, addresses, fit):
    assert make_run(Library())(addresses) == ([] if fit else "compiled")


def test_arguments_of_other_layouts_are_refused():
    with pytest.raises(ValueError, match="2 arguments, not 1"):
        stored_run.check_arguments(RECIPE, [torch.zeros(4, 8)])
    with pytest.raises(ValueError, match="no tensor on"):
        stored_run.check_arguments(RECIPE, [torch.zeros(4, 8), torch.zeros(8)])
