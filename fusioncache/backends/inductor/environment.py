"""The key ingredients that TorchInductor's code depends on besides a region.

Every key contains the settings of TorchInductor's modules, the user's passes, and environment variables. Default
settings are combined in one digest, changed ones have a line each. Only the keys of the store contain the machine and
the C++ compiler.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fusioncache.backends.inductor.artifacts import FORMAT
from fusioncache.backends.torch_settings import read_variables
from fusioncache.ir import Declined, Scope
from fusioncache.ir.keys import NamedValue, write_changed

_PREFIXES = (
    *("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_DYNAMO_", "TORCH_INDUCTOR_"),
    *("INDUCTOR_", "AOT_", "AOTINDUCTOR_", "TRITON_"),
)
"""Prefixes of the environment variables that TorchInductor, TorchDynamo and Triton read while they compile.

``OMP_NUM_THREADS`` is left out: it determines torch's number of threads. ``CUDA_HOME`` is set by TorchInductor."""
_NAMES = (
    *("ATEN_CPU_CAPABILITY", "CC", "CXX", "CUDACXX", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH"),
    *("COMPILER_PATH", "OMP_PREFIX", "CONDA_PREFIX", "CUTLASS_EPILOGUE_FUSION", "ENABLE_EPILOGUE_SUBTILING"),
    *("ENABLE_PERSISTENT_TMA_MATMUL", "ENABLE_TEMPLATE_TMA_STORE", "NVIDIA_TF32_OVERRIDE", "TENSORIFY_PYTHON_SCALARS"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_AUTOTUNE_REP", "TORCH_AUTOTUNE_WARMUP", "PYTORCH_JIT"),
)
_IGNORED_PREFIXES = (
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_WORKER_", "TORCHINDUCTOR_REDIS_"),
    *("TORCHINDUCTOR_FX_GRAPH_", "TORCHINDUCTOR_AUTOGRAD_", "TORCHINDUCTOR_FILE_LOCK_", "TORCHINDUCTOR_MM_LOGGING_"),
    *("TORCHINDUCTOR_NON_BLOCKING_", "TORCHINDUCTOR_QUIESCE_", "TORCHDYNAMO_VERBOSE", "TORCHDYNAMO_REPRO_"),
    *("TORCH_COMPILE_DEBUG", "TORCH_COMPILE_JOB_ID", "TORCH_COMPILE_STICKY_", "TORCH_COMPILE_CPROFILE"),
    *("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_PTXAS_PATH"),  # torch sets the first and the last
)
_IGNORED_DYNAMO_SETTINGS = (
    *("base_dir", "debug_dir_root", "traceable_tensor_subclasses", "nontraceable_tensor_subclasses"),
    *("reorderable_logging_functions", "ignore_logger_methods", "allowed_functions_module_string_ignorelist"),
)
"""TorchDynamo's settings for files, and for Python constructs in user code. In a region it only sees torch's
operations."""

_PASSES = (
    *("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass"),
    *("_fuse_ddp_communication_passes", "_pre_fusion_custom_pass"),
)
"""Settings that torch leaves out of the list that it hashes, because it hashes them separately."""


def inductor_settings() -> list[NamedValue]:
    """Returns name and value of each setting that TorchInductor's code depends on beyond torch's.

    Raises:
        Declined: if one is a function or another object that cannot be compared. torch does not store code that was
            compiled with such a setting either.
    """
    import torch

    return [
        ("torch.num_threads", torch.get_num_threads()),
        ("torch.settings.defaults", _defaults()),
        *(setting for module in _modules() for setting in _iterate_changes(module)),
        *_iterate_registered(),
        *read_variables(_PREFIXES, _NAMES, _IGNORED_PREFIXES),
    ]


def _modules() -> tuple[ModuleType, ...]:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as shapes

    return inductor, functorch, dynamo, shapes


@cache
def _defaults() -> str:
    """Returns a digest of the default settings: some are read from environment variables when torch is imported."""
    lines = [
        f"{module.__name__}.{name} {_default_text(entry)}"
        for module in _modules()
        for name, entry in module._config.items()
        if not _is_left_out(module, name)
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _iterate_changes(module: ModuleType) -> Iterator[NamedValue]:
    # Without torch's functions for this: they take a millisecond, and this runs for each trace.
    unset = _unset()
    for name, entry in module._config.items():
        value = entry.user_override
        if value is unset or entry.env_value_force is not unset or _is_left_out(module, name):
            continue
        default, text = _default_text(entry), _text(value, name)
        if text != default:
            yield f"{module.__name__}.{name}", write_changed(text, default)


def _default_text(entry: Any) -> str:
    """Returns the default of a setting as text."""
    values = [
        value for value in (entry.env_value_force, entry.env_value_default, entry.default) if value is not _unset()
    ]
    try:
        return _text(values[0], "") if values else "another's"
    except Declined as declined:  # a function of torch, which torch's version determines
        declined.require(Scope.REGION)
        return type(values[0]).__name__


@cache
def _unset() -> Any:
    from torch.utils import _config_module

    return _config_module._UNSET_SENTINEL


def _is_left_out(module: ModuleType, name: str) -> bool:
    """True if a setting changes no code, by torch's lists. Passes are never left out."""
    return name not in _PASSES and name.startswith(_prefixes_left_out(module))


@cache
def _prefixes_left_out(module: ModuleType) -> tuple[str, ...]:
    own = getattr(module, "_cache_config_ignore_prefix", ())
    return (*own, "_save_config_ignore", "_cache_config_ignore_prefix", *_IGNORED_DYNAMO_SETTINGS)


def _iterate_registered() -> Iterator[NamedValue]:
    """Yields passes and settings that were registered for a type of device, if TorchInductor was imported."""
    registry = sys.modules.get("torch._inductor.codegen.common")
    for device, own in sorted(getattr(registry, "custom_backend_passes", {}).items()):
        if own is not None:
            yield f"torch._inductor.pass_of_{device}", _text(own, f"the pass of {device}")
    for _, config in sorted(getattr(registry, "custom_backend_codegen_configs", {}).items()):
        if config is not None:
            yield from _iterate_changes(config)


def _text(value: Any, name: str) -> str:
    """Returns a setting's value as text. Equal texts mean equal values.

    Raises:
        Declined: if there is no such text.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return repr(value)
    if type(value) in (tuple, list):
        return f"[{', '.join(_text(item, name) for item in value)}]"
    if type(value) in (set, frozenset):
        return f"{{{', '.join(sorted(_text(item, name) for item in value))}}}"
    if type(value) is dict:
        return f"{{{', '.join(f'{_text(key, name)}: {_text(item, name)}' for key, item in value.items())}}}"
    return f"{type(value).__module__}.{type(value).__qualname__} {_uuid(value, name)}"


def _uuid(value: Any, name: str) -> str:
    """Returns the identity that a custom pass defines: see ``torch._inductor.custom_graph_pass``."""
    unknown = Declined(f"TorchInductor's setting {name} is a {type(value).__name__} without a uuid", Scope.REGION)
    if isinstance(value, type) or not callable(getattr(value, "uuid", None)):
        raise unknown
    try:
        uuid = value.uuid()
    except Exception as error:  # a user's function may raise anything
        raise unknown from error
    if uuid is None:
        raise unknown
    return _text(uuid, name)


def artifact_environment() -> Mapping[str, str]:
    """Returns the ingredients that artifacts depend on beyond ``Inductor.environment``."""
    import torch
    from torch._inductor import config

    build = f"{torch.__version__} {torch.version.git_version} C++11 ABI {torch._C._GLIBCXX_USE_CXX11_ABI}"
    return {
        "inductor format": str(FORMAT),
        "inductor torch": build,
        "inductor python": str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag),
        "inductor platform": _platform(),
        "inductor processor": f"{torch.backends.cpu.get_cpu_capability()} {_vector_units()}\n{_processor()}",
        "inductor compiler": read_compiler(tuple(map(str, filter(None, _as_sequence(config.cpp.cxx))))),
    }


@cache
def _platform() -> str:
    # Kernels call the C library's mathematical functions where there are no vectorized ones.
    return " ".join([sys.platform, platform.machine(), *platform.libc_ver()])


@cache
def _vector_units() -> str:
    """Names the units that TorchInductor chooses from, by test compiles that depend only on the key."""
    import torch

    asked = ("_is_avx2_supported", "_is_avx512_supported", "_is_vnni_supported", "_is_amx_tile_supported")
    found = [name.removeprefix("_is_").removesuffix("_supported") for name in asked if getattr(torch.cpu, name, bool)()]
    return " ".join([*found, f"wanted {os.environ.get('ATEN_CPU_CAPABILITY', '')}"])


@cache
def _processor() -> str:
    """Returns a digest of all features of the processor: kernels are compiled for exactly this one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    abilities = {line for line in lines if re.match(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b", line)}
    return hashlib.sha256("\n".join(sorted(abilities)).encode()).hexdigest()


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else (value,)


@cache
def read_compiler(candidates: tuple[str, ...]) -> str:
    """Returns the first line of the C++ compiler's ``--version``; an empty text if there is no compiler."""
    for path in filter(None, map(shutil.which, candidates)):
        try:
            said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        return said.splitlines()[0] if said else ""
    return ""
