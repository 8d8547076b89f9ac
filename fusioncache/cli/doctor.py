"""The command doctor: shows which features work on this machine, why others do not, and advice for the user."""

from __future__ import annotations

import os
import platform
import re
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from fusioncache.cli.console import (
    Column,
    count_columns,
    directory_option,
    format_pairs,
    format_table,
    json_option,
    print_json,
    wrap,
)
from fusioncache.humanize import format_bytes, format_count

_DRIVER = Path("/proc/driver/nvidia/version")
_SKEW_SECONDS = 60.0
_PACKAGES = ("fusioncache", "lightning-thunder", "torch", "triton", "networkx")
_COLUMNS = (
    Column("capability", key="name"),
    Column("needed by", lambda users: ", ".join(users) or "(faster)", "needed_by", fold=True),
    Column("works", lambda works: "yes" if works else "no"),
    Column("how, or why not", key="how", fold=True),
)


@click.command()
@directory_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, directory: Path | None, as_json: bool) -> None:
    """Show which features work here, and why the others do not.

    It checks the installed Thunder, torch and compilers. It probes each capability of Thunder, which takes some seconds
    with the imports. It shows a diff of each Thunder function whose source differs from the known one. It reads the
    remote in FUSIONCACHE_REMOTE, and writes to it if possible. The exit status is 0 if everything works, 1 if something
    is off or differs, and 2 if nothing is shared.

    \b
    Examples:
        fusioncache doctor
        fusioncache doctor --json > doctor.json
        fusioncache doctor > /dev/null || echo "something is off"
    """
    found = diagnose(directory)
    if as_json:
        print_json(found)
    else:
        click.echo("\n\n".join(_write(found, count_columns())))
    ctx.exit(found["status"])


def diagnose(directory: Path | None) -> dict[str, Any]:
    """Returns all findings about this machine. Every probe runs, also for functions with a known source.

    - ``status``: the exit status: 0 if all works, 1 if something is off, 2 if nothing is shared.
    - ``versions``: the installed versions by name, or None.
    - ``store``: the store on disk: its path, whether it exists and is writable, its bytes, permissions and any problem.
    - ``remote``: its address, the number of packs in its index, the index's signer and time, whether it is writable,
      and any problem; None if ``FUSIONCACHE_REMOTE`` names none.
    - ``unusable``: why nothing is shared; empty if regions are shared.
    - ``limits``: the features that are off in this Thunder and why; empty if everything is on.
    - ``off``: the accelerators that are off, each with the reason.
    - ``capabilities``: for each capability of Thunder: the name, the accelerators that are off without it, whether it
      works, how that was established or the problem, and the seconds of its probe.
    - ``misfits``: the functions of Thunder whose source differs from the one that fusioncache was written for: the
      capability, the name, the digest of the installed source, and the lines of a diff.
    - ``faults``: the failures of this combination of versions that occur without fusioncache as well.
    - ``backends``: the reason why each compiler cannot be used; empty if it can.
    - ``advice``: recommended actions, most important first.
    - ``sources``: the digest of the installed Thunder's sources; empty if it cannot be imported.

    Args:
        directory: the directory of the store; None for the default one.
    """
    from fusioncache.thunder_adapter.versions import find_import_problem

    versions, problem = read_versions(), find_import_problem() or ""
    found: dict[str, Any] = {"status": 2, "versions": versions, "store": examine_store(directory), "unusable": problem}
    found["remote"] = examine_remote()
    found |= {"limits": "", "off": {}, "capabilities": (), "misfits": (), "faults": (), "backends": {}}
    if problem:
        return {**found, "advice": (_advise_import(versions),), "sources": ""}
    from fusioncache.backends.api import problem as find_problem
    from fusioncache.thunder_adapter.capabilities import explain_limits, explain_unusable, find_off
    from fusioncache.thunder_adapter.versions import explain_fault, find_faults, read_digest

    compilers = {"nvFuser on a GPU": ("nvfuser", "cuda"), "TorchInductor on a CPU": ("inductor", "cpu")}
    found |= {"capabilities": tuple(_report_capabilities()), "misfits": tuple(_report_misfits())}
    found |= {"unusable": explain_unusable() or "", "limits": explain_limits() or "", "off": dict(find_off())}
    found["faults"] = tuple(map(explain_fault, find_faults()))
    found["backends"] = {name: find_problem(*compiler) or "" for name, compiler in compilers.items()}
    remote = found["remote"] and found["remote"]["problem"]
    is_limited = bool(found["limits"] or found["misfits"] or found["store"]["problem"] or remote)
    found["status"] = 2 if found["unusable"] else int(is_limited)
    return {**found, "advice": tuple(_advise(found)), "sources": read_digest()}


def read_versions() -> dict[str, str | None]:
    """Returns the versions of the software and drivers that fusioncache runs on; None for a missing one."""
    from fusioncache.backends.inductor.environment import read_compiler

    compiler = read_compiler((os.environ.get("CXX", "g++"),))
    found: dict[str, str | None] = {"Python": platform.python_version(), "machine": platform.machine()}
    found |= {name: _read_package(name) for name in _PACKAGES}
    return found | {"nvfuser": _read_nvfuser(), "NVIDIA driver": _read_driver(), "C++ compiler": compiler or None}


def _read_package(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _read_nvfuser() -> str | None:
    names = sorted(name for dist in metadata.distributions() if (name := dist.name or "").startswith("nvfuser"))
    return ", ".join(f"{name} {metadata.version(name)}" for name in dict.fromkeys(names)) or None


def _read_driver() -> str | None:
    with suppress(OSError):
        return next(iter(re.findall(r"\d+\.\d+[.\d]*", _DRIVER.read_text())), None)
    return None


def _report_capabilities() -> Iterator[dict[str, Any]]:
    from fusioncache.thunder_adapter import installation
    from fusioncache.thunder_adapter.capabilities import examine, list_capabilities

    installation.install()  # as a FusionCache does, so that the probes take less time
    for capability in list_capabilities():
        finding = examine(capability, thorough=True)
        known = "known source and probe" if capability.probe else "known source"
        how = "names" if not capability.patches else "probe" if finding.misfits else known
        yield {
            **{"name": capability.name, "needed_by": capability.users, "works": finding.works},
            **{"how": how if finding.works else "", "problem": finding.problem, "seconds": finding.seconds},
        }


def _report_misfits() -> Iterator[dict[str, Any]]:
    from fusioncache.thunder_adapter.installation import (
        find_misfit,
        list_patches,
        read_installed,
        read_sources,
        write_difference,
    )

    known, seen = read_sources(), set[str]()
    for group in list_patches().values():
        for row in group.rows:
            module = row.original.partition(":")[0]
            optional = module.startswith(("thunder.dynamo", "torch._inductor")) and module not in sys.modules
            if row.original in seen or optional or find_misfit(row) is None:
                continue
            seen.add(row.original)
            installed = read_installed(row)
            about = {"capability": group.name, "original": row.original, "digest": installed[0] if installed else None}
            yield {**about, "difference": tuple(write_difference(row, known))}


def examine_store(directory: Path | None) -> dict[str, Any]:
    """Returns the state of the store in a directory, which need not exist."""
    from fusioncache.cli.things import measure_store
    from fusioncache.store import default_path

    path, usage = directory or default_path(), measure_store(directory)
    about = {"path": str(path), "exists": False, "writable": False, "bytes": usage and usage["bytes"], "mode": None}
    try:
        there = path.exists()
        nearest = next(each for each in (path, *path.parents) if each.exists())
    except OSError as error:
        return {**about, "problem": f"{path} cannot be used ({error.strerror}): nothing is stored for later processes"}
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    what = "cannot be written" if nearest.is_dir() else "is no directory"
    problem = "" if writable else f"{nearest} {what}: nothing is stored for later processes"
    mode = stat.filemode(path.stat().st_mode) if there else None
    return {**about, "exists": there, "writable": writable, "mode": mode, "problem": problem}


def examine_remote() -> dict[str, Any] | None:
    """Returns the state of the remote that ``FUSIONCACHE_REMOTE`` names; None if it names none.

    It is read. If possible, a small file is written to it, and removed. ``written`` is the time at which its index was
    written, in seconds since the epoch, and ``signer`` the name of the key that signed the index.
    """
    from fusioncache.process.settings import REMOTE
    from fusioncache.store.files import Refusal, StoreError
    from fusioncache.store.index import decode_index
    from fusioncache.store.remote import Remote
    from fusioncache.store.signing import read_trust, split_origin

    if not REMOTE.get_text():
        return None
    remote = Remote(REMOTE.get_text())
    found: dict[str, Any] = {"url": str(remote), "packs": None, "signer": "", "written": None, "writable": False}
    try:
        remote.require()
        trust = read_trust()
        content = remote.fetch_index_file()
        if content is not None:
            index, (origin, _) = decode_index(content, trust), split_origin(content)
            found |= {"packs": len(index.packs), "written": index.serial / 1000}
            found["signer"] = trust.name(origin.key) if origin else ""
        found["writable"] = remote.can_write()
    except (Refusal, StoreError, ValueError) as error:
        return {**found, "problem": str(error)}
    ahead = (found["written"] or 0.0) - time.time()
    late = f"its index is from {ahead:.0f} s ahead of this machine's clock: set the clock of one of them"
    return {**found, "problem": late if ahead > _SKEW_SECONDS else ""}


def _advise(found: Mapping[str, Any]) -> Iterator[str]:
    yield from filter(None, [found["unusable"] or found["limits"]])
    yield from found["faults"]
    if found["misfits"] and not found["unusable"]:
        yield "report the differences above, with fusioncache doctor --json, or see docs/porting.md to accept them"
    if all(found["backends"].values()):
        yield from found["backends"].values()
    if found["remote"] and found["remote"]["problem"]:
        yield f"the remote: {found['remote']['problem']}"
    if found["store"]["problem"]:
        yield f"the store: {found['store']['problem']}. Set FUSIONCACHE_DIR to a directory that can be written"


def _advise_import(versions: dict[str, str | None]) -> str:
    if versions["lightning-thunder"] is None:
        return "install Thunder: pip install lightning-thunder"
    if re.match(r"2\.(1[3-9]|[2-9]\d)", versions["torch"] or ""):
        return "install torch 2.10 or 2.11: Thunder cannot be imported with later versions"
    return "repair the installation of Thunder: python -c 'import thunder' shows what it lacks"


def _write(found: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """Yields the paragraphs of a diagnosis."""
    yield format_pairs((name, text or "none") for name, text in found["versions"].items())
    if found["capabilities"]:
        yield format_table(
            _COLUMNS, [{**each, "how": each["how"] or each["problem"]} for each in found["capabilities"]]
        )
        yield f"all probes: {1000 * sum(each['seconds'] for each in found['capabilities']):.0f} ms"
    for misfit in found["misfits"]:
        installed = f"installed: {misfit['digest']}" if misfit["digest"] else "it is not there"
        head = f"{misfit['original']} ({misfit['capability']}), {installed}"
        yield "\n".join((wrap(head, width), *misfit["difference"]))
    if found["backends"]:
        yield format_pairs((name, problem or "works") for name, problem in found["backends"].items())
    store = found["store"]
    remote = found["remote"]
    if remote:
        packs = "no index" if remote["packs"] is None else format_count(remote["packs"], "pack", "packs")
        signed = f", signed by {remote['signer']}" if remote["signer"] else ""
        may = "can be read and written" if remote["writable"] else "can be read only"
        state = "cannot be used" if remote["problem"] else f"{packs}{signed}; {may}"
        yield format_pairs([("remote", remote["url"]), ("", state)])
    size = "none" if store["bytes"] is None else format_bytes(store["bytes"])
    yield format_pairs([("store", store["path"]), ("size", size), ("permissions", store["mode"] or "-")])
    yield "\n".join(wrap(f"- {text}", width, 2) for text in found["advice"] or ("everything works",))
