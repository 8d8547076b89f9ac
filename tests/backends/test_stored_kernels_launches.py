"""Runs of stored nvFuser kernels: what is passed to the driver, for which arguments, and what a run returns."""

import ctypes
import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from fake_driver import fake_driver
from sample_recipe import FLAT, NAME, RECIPE, make_elf, make_launch, pack_words

from fusioncache.backends.nvfuser import stored_run
from fusioncache.backends.nvfuser.driver import NO_CONTEXT, DriverError
from fusioncache.backends.nvfuser.recipe import Fill, Fresh, Input, Layout, Pointer, Recipe, View
from fusioncache.backends.nvfuser.stored_run import StoredRun


class Library:
    """A fake driver that loads everything except on refused devices, and records launches and fills."""

    def __init__(self, codes=(), sizes=(16, 24, 1), refused=()):
        self.codes = list(codes)  # the results of the first launches and fills, or functions that return them
        self.sizes, self.refused = list(sizes), refused  # of the parameters of each function
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
        code = self.codes.pop(0) if self.codes else 0
        return (code() if callable(code) else code,)


@pytest.fixture(name="make_run")
def _make_run(monkeypatch):
    """Returns a function that makes runs; arguments and allocations are addresses, or tensors with a device number."""
    current = [0]

    @contextmanager
    def change_device(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(stored_run, "data_ptr", lambda arg: arg if isinstance(arg, int) else arg.data_ptr())
    monkeypatch.setattr(stored_run, "_get_device", lambda arg: getattr(arg, "device_number", 0))
    monkeypatch.setattr(stored_run, "_current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", change_device)

    def make(library, recipe=WITHOUT_OUTPUTS, *, stream=5, allocations=(0x3000, 0x4000), home=0, poison=False):
        given = iter(allocations)
        monkeypatch.setattr(stored_run, "_current_stream", lambda device: stream)
        monkeypatch.setattr(stored_run.guards, "_empty_strided_cuda", lambda *layout: next(given))
        artifacts = {"0.cubin": make_elf(), "kernels.cu": b"for people, so that nothing looks at it"}
        return StoredRun(recipe, artifacts, lambda args: "compiled", library.driver, home, poison=poison).run

    return make


WITHOUT_OUTPUTS = replace(RECIPE, outputs=(), steps=(Fill(2, 8, 100, 255), *RECIPE.steps[1:]))
ARGS = [0x1000, 0x2002]


@pytest.mark.parametrize(("stream", "told"), [(5, 5), (0, 1)], ids=["a stream", "the default stream"])
def test_a_launch_says_where_everything_lies(make_run, stream, told):
    library = Library()
    run = make_run(library, stream=stream, allocations=(0x3000, 0x4000, 0x5000, 0x6000))
    assert run(ARGS) == []
    content = [pack_words(0x1000) + b"\x04\0\0\0\x08\0\0\0", pack_words(0, 0x3040, 0), b"\x05"]
    function = len(make_elf())
    expected = ("launch", function, (7, 2, 1), (128, 1, 1), 16, told, [(2, 1)], content)
    assert library.log == [("fill", 0x3008, 255, 100, told), expected]
    library.log.clear()
    run([0x9000, 0x2002])
    content = [pack_words(0x9000) + b"\x04\0\0\0\x08\0\0\0", pack_words(0, 0x5040, 0), b"\x05"]
    assert library.log == [("fill", 0x5008, 255, 100, told), (*expected[:-1], content)]


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ({"codes": [1]}, r"CUDA_ERROR_INVALID_VALUE \(1\), as a test says"),
        ({"codes": [lambda: int("unknown")]}, "unknown"),
        ({"sizes": [16, 24]}, "other parameters"),
    ],
)
def test_what_does_not_load_or_fails_in_its_first_step_is_compiled(make_run, library, said, caplog):
    assert make_run(Library(**library))(ARGS) == "compiled"
    assert re.search(said, caplog.text)


@pytest.mark.parametrize(("code", "said"), [(700, "CUDA_ERROR_ILLEGAL_ADDRESS"), (7777, r"unknown error \(7777\)")])
def test_what_fails_later_is_an_error(make_run, code, said):
    with pytest.raises(DriverError, match=said):
        make_run(Library([0, code]))(ARGS)


def test_equal_cubins_are_loaded_once_on_each_device():
    loaded = []
    none, load = lambda *args: (0, 0), lambda image: (0, loaded.append(image) or len(loaded))
    driver = fake_driver(cuThreadExchangeStreamCaptureMode=none, cuModuleLoadData=load)
    wanted = ((b"one", 0), (b"other", 0), (b"one", 0), (b"one", 1), (b"other", 0))
    assert [driver.load(image, device) for image, device in wanted] == [1, 2, 1, 3, 2]
    assert loaded == [b"one", b"other", b"one"]


def test_a_thread_without_a_context_gets_one(make_run):
    library = Library([NO_CONTEXT])
    assert make_run(library)(ARGS) == []
    assert library.bound == [0, 0] and [call[0] for call in library.log] == ["fill", "fill", "launch"]


@pytest.mark.parametrize(
    ("addresses", "fit"),
    [([16, 2], True), ([0, 6], True), ([8, 2], False), ([16, 4], False), ([16, 1], False), ([24, 2], False)],
)
def test_a_kernel_is_not_launched_on_what_is_aligned_otherwise(make_run, addresses, fit):
    library = Library()
    assert make_run(library)(addresses) == ([] if fit else "compiled")
    assert bool(library.log) is fit


LAUNCH = make_launch(parameters=(bytes(8),), pointers=(Pointer(0, 0, 0, 0),))
VIEWS = View(FLAT, 0, 0, True), View(Layout("float32", (8,), (1,)), 0, 8, False)
IN_PLACE = Recipe((Input(FLAT, 16),), (), VIEWS, (LAUNCH,), 16)


TERM = torch.zeros(9, dtype=torch.bfloat16)[1:]


def make_flat(device=0):
    """Returns a tensor in the layout of the recipe, at an aligned address, as torch allocates it."""
    tensor = torch.arange(32.0).view(4, 8)
    tensor.device_number = device
    return tensor


def test_a_thread_launches_while_another_one_does(make_run):
    library = Library(sizes=[8])
    run = make_run(library, IN_PLACE)
    first, second = make_flat(), make_flat()
    begun, free = threading.Event(), threading.Event()

    def launch_slowly():
        begun.set()
        assert free.wait(30)
        return 0

    run([first])  # loads the cubin
    library.codes.append(launch_slowly)
    other = threading.Thread(target=run, args=([second],))
    other.start()
    assert begun.wait(30)
    run([first])
    free.set()
    other.join()
    words = [pack_words(each.data_ptr()) for each in (first, second, first)]
    assert [call[-1] for call in library.log] == [[each] for each in words]
    assert library.loads == [0]


def test_a_device_on_which_nothing_loads_or_launches_gets_what_is_compiled(make_run, caplog):
    library = Library(sizes=[8], refused={1})
    run = make_run(library, IN_PLACE)
    other = make_flat(device=1)
    assert [run([other]), run([other])] == ["compiled", "compiled"]
    assert library.loads == [1]
    run([make_flat()])
    assert [entry[0] for entry in library.log] == ["launch"]
    library.codes.append(1)
    assert [run([make_flat()]), run([make_flat()])] == ["compiled", "compiled"]
    assert len(library.log) == 2
    assert len(caplog.records) == 2


def test_what_has_no_inputs_is_launched_on_the_gpu_that_its_region_names(make_run):
    library, output = Library(sizes=[8]), make_flat()
    run = make_run(library, Recipe((), (128,), (Fresh(FLAT, 0, 0),), (LAUNCH,), 16), allocations=[output] * 2, home=1)
    assert run([]) == [output] and library.loads == [1]
    assert library.log.pop()[-1] == [pack_words(output.data_ptr())]
    library.codes.append(1)
    assert run([]) == "compiled"


def test_outputs_in_the_memory_of_an_input_are_unknown_to_autograd(make_run):
    arg = make_flat().requires_grad_()
    same, view = make_run(Library(sizes=[8]), IN_PLACE)([arg])
    assert same is arg
    assert not view.requires_grad
    assert view.data_ptr() == arg.data_ptr() + 32


def test_outputs_are_made_of_allocations(make_run):
    args = [make_flat(), TERM]
    fresh = [make_flat(), torch.arange(512, dtype=torch.uint8)]
    first, view, again, part = make_run(Library(), RECIPE, allocations=fresh)(args)
    assert first is again is fresh[0]
    assert torch.equal(view, args[0].flatten()[8:16]) and view.data_ptr() == args[0].data_ptr() + 32
    assert part.shape == (4, 8) and part.data_ptr() == fresh[1].data_ptr() + 128
    assert not part._is_view()


ROWS, TAIL, WORDS = Layout("float32", (32,), (1,)), Layout("float32", (2, 4), (4, 1)), Layout("int32", (32,), (1,))
IN_ONE = Fresh(TAIL, 0, 96), Fresh(FLAT, 0, 0), Fresh(ROWS, 0, 0), Fresh(WORDS, 0, 0)
SHARED = Recipe((), (128,), IN_ONE, (LAUNCH,), 16)


def test_several_outputs_lie_in_one_allocation(make_run):
    memory = make_flat()
    tail, whole, rows, words = make_run(Library(sizes=[8]), SHARED, allocations=[memory])([])
    assert whole is memory
    assert (rows.shape, rows.data_ptr(), rows.dtype) == ((32,), memory.data_ptr(), torch.float32)
    assert (words.shape, words.data_ptr(), words.dtype) == ((32,), memory.data_ptr(), torch.int32)
    assert torch.equal(tail, memory.flatten()[24:].view(2, 4))
    # As for nvFuser's outputs, autograd sees neither that they share memory nor that one write changes several.
    assert not any(each._is_view() or each.requires_grad for each in (tail, rows, words))
    before, first = rows._version, float(rows[0])
    whole.add_(1)
    assert rows._version == before and rows[0] == first + 1


def test_memory_may_be_filled_before_a_launch_so_that_it_shows_where_it_is_read_first(make_run):
    recipe = replace(WITHOUT_OUTPUTS, outputs=(Fresh(FLAT, 0, 0), Fresh(FLAT, 1, 128)))
    memory = [make_flat(), torch.zeros(512, dtype=torch.uint8)]
    for output in make_run(Library(), recipe, allocations=memory, poison=True)([make_flat(), TERM]):
        assert output.shape == (4, 8) and output.view(torch.uint8).unique().tolist() == [255]
    assert memory[1].unique().tolist() == [255]


def test_a_recipe_without_its_cubin_and_arguments_of_other_layouts_are_refused():
    with pytest.raises(ValueError, match=r"without its cubin 0\.cubin"):
        StoredRun(RECIPE, {}, list, None, 0)
    for count, message in ((1, "2 arguments, not 1"), (2, "no tensor on")):
        with pytest.raises(ValueError, match=message):
            stored_run.check_arguments(RECIPE, [torch.zeros(4, 8), torch.zeros(8)][:count])


def test_each_run_is_launched_on_the_device_of_its_arguments(make_run):
    seen = []
    run = make_run(Library([lambda: seen.append(stored_run._current_device()) or 0] * 4, [8]), IN_PLACE)
    for device in (0, 1, 1, 0):
        run([make_flat(device)])
    assert seen == [0, 1, 1, 0]
