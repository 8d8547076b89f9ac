"""Which of Thunder's tests are run where."""

from typing import NamedTuple


class Selection(NamedTuple):
    """Which tests of a file run: those with one regular expression in their names and not the other, every how many."""

    pattern: str = ""
    leave: str = ""
    sample: int = 1


_ALL = Selection()

# Files whose tests run without a GPU and call thunder.jit. Interpreter tests make no regions, and the files of single
# libraries (apex, cudnn, flash attention, transformer engine) skip everything where these are missing.
_CPU = (
    "autocast auto_register_torchops check_trace core dynamo einops elementwise examine examine_memory extend "
    "grad inplace_copy jit_general networks ops patterns pythonex randomness recipes reductions sdpaex_executor "
    "shape_ops torch_compile_executor torch_library_custom_op torch_library_custom_op_with_lists transforms "
    "update_aliases"
)
_SAMPLES = {"auto_register_torchops": 20, "grad": 8, "ops": 20}
CPU = {f"test_{name}.py": Selection(sample=_SAMPLES.get(name, 1)) for name in _CPU.split()}

# What PyTorch's executor is asked to run, and what runs on the CPU there, makes no regions.
_WITHOUT_REGIONS = r"_torch_c(pu|uda)|_torchcompile_|_cpu_|\[(cpu|meta)"
_ON_GPU = Selection(leave=_WITHOUT_REGIONS)


# In about 9 minutes on an H200 with 14 processes.
_OF_NVFUSER = {"autocast": 1, "elementwise": 1, "grad": 4, "inplace_copy": 1, "ops": 20, "randomness": 1}
_OF_NVFUSER |= {"reductions": 1, "update_aliases": 2}
GPU = {
    **{f"test_{name}.py": _ALL for name in ("nvfuser", "nvfuser_remat")},
    **{f"test_{name}.py": _ON_GPU for name in ("core", "jit_general", "networks", "transforms")},
    **{f"test_{name}.py": Selection("nvfuser", _WITHOUT_REGIONS, every) for name, every in _OF_NVFUSER.items()},
}

# In a minute: every fourth test of the files that have many.
CI = {
    "test_check_trace.py": Selection(pattern="missing_symbol"),
    "test_core.py": Selection(
        pattern=r"_torch_cpu_(None|thunder.dtypes.float32)$", leave="eval_trace|test_inplace_|caching", sample=4
    ),
    "test_inplace_copy.py": Selection(pattern="float32"),
    "test_jit_general.py": Selection(pattern="nanogpt_(block|mlp)|add|symbolic|autograd|renames"),
    "test_networks.py": Selection(pattern="mlp_torch_cpu"),
    "test_reductions.py": _ALL,
    "test_transforms.py": Selection(pattern="prologue|thunderfx|debug|symbolic"),
    "test_update_aliases.py": Selection(pattern="_torch_cpu_", sample=4),
}

SUITES = {"cpu": CPU, "gpu": GPU, "ci": CI}
