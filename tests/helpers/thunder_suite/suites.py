"""Selections of Thunder's tests by suite: for each file a pattern of test names, and n to run every n-th test."""

# Files whose tests run without a GPU and call thunder.jit. Interpreter tests make no regions, and the files of single
# libraries (apex, cudnn, flash attention, transformer engine) skip everything where these are missing.
_CPU = (
    "autocast auto_register_torchops check_trace core dynamo einops elementwise examine examine_memory extend "
    "grad inplace_copy jit_general networks ops patterns pythonex randomness recipes reductions sdpaex_executor "
    "shape_ops torch_compile_executor torch_library_custom_op torch_library_custom_op_with_lists transforms "
    "update_aliases"
)
_SAMPLES = {"auto_register_torchops": 20, "grad": 8, "ops": 20}

# Tests of PyTorch's executors, and tests on the CPU in that suite, make no regions.
_WITH_REGIONS = r"^(?!.*(_torch_c(pu|uda)|_torchcompile_|_cpu_|\[(cpu|meta)))"

# In about 9 minutes on an H200 with 14 processes.
_OF_NVFUSER = {"autocast": 1, "elementwise": 1, "grad": 4, "inplace_copy": 1, "ops": 20, "randomness": 1}
_OF_NVFUSER |= {"reductions": 1, "update_aliases": 2}

SUITES = {
    "cpu": {f"test_{name}.py": ("", _SAMPLES.get(name, 1)) for name in _CPU.split()},
    "gpu": {
        **{f"test_{name}.py": ("", 1) for name in ("nvfuser", "nvfuser_remat")},
        **{f"test_{name}.py": (_WITH_REGIONS, 1) for name in ("core", "jit_general", "networks", "transforms")},
        **{f"test_{name}.py": (_WITH_REGIONS + ".*nvfuser", every) for name, every in _OF_NVFUSER.items()},
    },
}
