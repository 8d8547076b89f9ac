"""Launches of stored nvFuser kernels: what the driver is told, for which arguments, and what a run gives back."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from sample_recipe import FLAT, NAME, RECIPE, elf, kernel, words

from fusioncache.backends.nvfuser import fitting, launch, outputs
from fusioncache.backends.nvfuser.capture import alignment
from fusioncache.backends.nvfuser.driver import Driver, DriverError
from fusioncache.backends.nvfuser.loaded import Loaded, NothingLaunched
from fusioncache.backends.nvfuser.parts import Input, Layout, Pointer, View
from fusioncache.backends.nvfuser.recipe import Recipe


class Library:
    """A driver's library that writes down what is launched."""

    def __init__(self, codes=()):
        self.log, self.codes, self.bound = [], list(codes), []
        self.sizes = [16, 24, 1]

    def result(self):
        return self.codes.pop(0) if self.codes else 0

    def cuMemsetD8Async(self, *args):
        self.log.append(("fill", *args))
        return self.result()

    def cuLaunchKernelEx(self, config, function, parameters, extra):
        config = config._obj
        content = [ctypes.string_at(parameters[place], size) for place, size in enumerate(self.sizes)]
        attributes = [
            (config.attributes[place].id, config.attributes[place].value.number)
            for place in range(config.attribute_count)
        ]
        size = tuple(config.grid), tuple(config.block), config.shared
        self.log.append(("launch", function.value, *size, config.stream, attributes, content))
        return self.result()

    def cuGetErrorName(self, code, text):
        text._obj.value = b"CUDA_ERROR"
        return 0

    cuGetErrorString = cuGetErrorName


class Loads(Driver):
    """A driver that loads anything."""

    def __init__(self, library):
        self.library = library

    def bind(self, device):
        self.library.bound.append(device)

    def load(self, image):
        return len(image)

    def function(self, module, name):
        assert name == NAME
        return module

    def parameters(self, function):
        return tuple((0, size) for size in self.library.sizes)

    def allow_shared(self, function, size):
        assert size == 49152


ADDRESSES = [0x1000, 0x2000, 0x3000, 0x4000]


def launched(library, stream=5, addresses=ADDRESSES):
    loaded = Loaded(RECIPE, {"0.cubin": b"\x7fELF..."}, Loads(library), 0)
    loaded.launch(addresses, stream)
    return loaded


def test_a_launch_says_where_everything_lies():
    library = Library()
    loaded = launched(library)
    content = [words(0x1000) + b"\x04\0\0\0\x08\0\0\0", words(0, 0x3040, 0), b"\x05"]
    expected = ("launch", 7, (7, 2, 1), (128, 1, 1), 16, 5, [(2, 1)], content)
    assert library.log == [("fill", 0x4000, 0, 256, 5), expected]
    library.log.clear()
    loaded.launch([0x9000, 0x2000, 0x5000, 0x6000], 8)
    content = [words(0x9000) + b"\x04\0\0\0\x08\0\0\0", words(0, 0x5040, 0), b"\x05"]
    assert library.log == [("fill", 0x6000, 0, 256, 8), (*expected[:5], 8, [(2, 1)], content)]


def test_a_thread_without_a_context_gets_one():
    library = Library([201])
    launched(library)
    assert library.bound == [0, 0]
    assert [entry[0] for entry in library.log] == ["fill", "fill", "launch"]


def test_a_first_step_that_fails_is_told_from_others():
    with pytest.raises(NothingLaunched, match="CUDA_ERROR"):
        launched(Library([1]))
    with pytest.raises(DriverError, match="CUDA_ERROR"):
        launched(Library([0, 700]))


def test_a_cubin_with_other_parameters_is_refused():
    library = Library()
    library.sizes = [16, 24]
    with pytest.raises(ValueError, match="other parameters"):
        launched(library)


def test_a_recipe_without_its_cubin_is_refused():
    with pytest.raises(ValueError, match=r"without its cubin 0\.cubin"):
        launch.Launcher(RECIPE, {}, list, None)


IN_PLACE = Recipe(
    inputs=(Input(FLAT, 16),),
    allocations=(),
    outputs=(View(FLAT, 0, 0, True), View(Layout("float32", (8,), (1,)), 0, 8, False)),
    steps=(kernel(parameters=(bytes(8),), pointers=(Pointer(0, 0, 0, 0),)),),
    widest=16,
)


class Devices(Loads):
    """As many devices as one likes; cubins do not load on some of them."""

    def __init__(self, library, refused=()):
        super().__init__(library)
        self.refused, self.loads = refused, []

    def load(self, image):
        device = self.library.bound[-1]
        self.loads.append(device)
        if device in self.refused:
            raise DriverError("load", 209, "no kernel image")
        return super().load(image)


def launcher(monkeypatch, library, refused=()):
    """A run on device 0 unless a tensor has an attribute that says otherwise."""
    library.sizes = [8]
    monkeypatch.setattr(launch, "_get_device", lambda tensor: getattr(tensor, "place", 0))
    monkeypatch.setattr(launch, "_current_device", lambda: 0)
    monkeypatch.setattr(launch, "_current_stream", lambda device: 5)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    driver = Devices(library, refused)
    artifacts = {"0.cubin": elf(), "kernels.cu": b"for people, so that nothing looks at it"}
    return launch.Launcher(IN_PLACE, artifacts, lambda args: "compiled", driver).run, driver


def flat(off=0):
    """A tensor in the layout of the recipe, so many elements behind an aligned address."""
    memory = torch.zeros(64)
    first = -memory.data_ptr() % 16 // 4
    return memory[first + off :][:32].view(4, 8)


def test_a_kernel_is_not_launched_on_what_is_aligned_otherwise(monkeypatch):
    library = Library()
    run, _ = launcher(monkeypatch, library)
    for off in (1, 2, 3, 5):
        assert run([flat(off)]) == "compiled"
    assert not library.log
    for off in (0, 4):
        arg = flat(off)
        assert run([arg])[0] is arg
        assert library.log.pop()[-1] == [words(arg.data_ptr())]


def test_a_device_on_which_nothing_loads_or_launches_gets_what_is_compiled(monkeypatch, caplog):
    library = Library()
    run, driver = launcher(monkeypatch, library, refused={1})
    other = flat()
    other.place = 1
    assert [run([other]), run([other])] == ["compiled", "compiled"]
    assert driver.loads == [1]
    run([flat()])
    assert [entry[0] for entry in library.log] == ["launch"]
    library.codes.append(1)
    assert [run([flat()]), run([flat()])] == ["compiled", "compiled"]
    assert len(library.log) == 2
    assert len(caplog.records) == 2


def test_outputs_in_the_memory_of_an_input_are_unknown_to_autograd(monkeypatch):
    run, _ = launcher(monkeypatch, Library())
    arg = flat().requires_grad_()
    same, view = run([arg])
    assert same is arg
    assert not view.requires_grad
    assert view.data_ptr() == arg.data_ptr() + 32


@pytest.mark.parametrize(
    ("addresses", "fit"),
    [([16, 2], True), ([0, 6], True), ([8, 2], False), ([16, 4], False), ([16, 1], False), ([24, 2], False)],
)
def test_addresses_must_be_aligned_as_captured(addresses, fit):
    assert fitting.aligned(RECIPE)(addresses) is fit


def test_alignment_matters_up_to_the_widest_access():
    assert [alignment(address, 16) for address in (0, 1, 2, 12, 8, 16, 48, 512)] == [16, 1, 2, 4, 8, 16, 16, 16]
    assert alignment(512, 32) == 32
    recipe = replace(RECIPE, inputs=(RECIPE.inputs[0], replace(RECIPE.inputs[1], alignment=16)))
    assert fitting.aligned(recipe)([32, 48])
    assert not fitting.aligned(recipe)([32, 40])


def test_arguments_of_other_layouts_are_refused():
    with pytest.raises(ValueError, match="2 arguments, not 1"):
        fitting.fits(RECIPE, [torch.zeros(4, 8)])
    with pytest.raises(ValueError, match="no tensor on"):
        fitting.fits(RECIPE, [torch.zeros(4, 8), torch.zeros(8)])


def test_outputs_are_made_of_allocations():
    fresh = [torch.zeros(4, 8), torch.arange(512, dtype=torch.uint8)]
    args = [torch.arange(32.0).reshape(4, 8), torch.zeros(8, dtype=torch.bfloat16)]
    first, view, again, part = outputs.give(RECIPE, poison=False)(args, fresh)
    assert first is again is fresh[0]
    assert view.tolist() == list(range(8, 16))
    assert view.data_ptr() == args[0].data_ptr() + 32
    assert part.shape == (4, 8)
    assert not part._is_view()
    assert part.data_ptr() == fresh[1].data_ptr() + 128
    itself = replace(RECIPE, outputs=(View(FLAT, 0, 0, True),))
    assert outputs.give(itself, poison=False)(args, fresh)[0] is args[0]
    poisoned = outputs.give(RECIPE, poison=True)(args, [torch.arange(128, dtype=torch.uint8), fresh[1]])
    assert poisoned[0].shape == (4, 8)


def test_an_output_that_fills_its_allocation_is_made_in_one():
    assert outputs.alone(RECIPE, False) == {0: FLAT}
    assert outputs.alone(RECIPE, True) == {}
