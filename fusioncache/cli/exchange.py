"""Commands that copy entries of the store to and from other machines: through a remote, or in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import click

from fusioncache.cache import exchange
from fusioncache.cache.exchange import CopyResult, Retention, prune_remote
from fusioncache.cache.packing import load_pack, save_pack
from fusioncache.cli.console import (
    check_output,
    check_url,
    directory_option,
    encode_fields,
    force_option,
    format_pairs,
    json_option,
    print_json,
    say,
    show_progress,
    unsigned_option,
)
from fusioncache.cli.things import format_contents, open_store, report_refused
from fusioncache.humanize import escape_controls, format_bytes, format_count
from fusioncache.process.settings import TRUST
from fusioncache.store import StoreError, default_path
from fusioncache.store.entry import OTHER_FORMAT, is_program
from fusioncache.store.packs import Pack, UnpackResult, open_pack
from fusioncache.store.remote import Remote
from fusioncache.store.signing import SigningKey, read_own_key, require_trust


def _copy_options(command: Callable[..., None]) -> Callable[..., None]:
    dry_run = click.option("--dry-run", is_flag=True, help="Copy nothing, and print what would be copied.")
    return click.argument("url", callback=check_url)(directory_option(dry_run(json_option(command))))


@click.command()
@_copy_options
@unsigned_option
def push(url: str, directory: Path | None, dry_run: bool, as_json: bool, unsigned: bool) -> None:
    """Copy the entries of the store to URL, signed.

    It signs with the key that 'fusioncache keys new' makes, or with the one in FUSIONCACHE_SIGNING_KEY. Machines that
    trust this key run the entries. Entries from other machines keep their signatures.

    URL is an fsspec URL such as s3://bucket/folder, gs://bucket/folder or file:///folder, or a path. Entries that are
    there already stay as they are. The last folder of URL is made if needed; the folder above it must exist.

    pip install "fusioncache[s3]" or "fusioncache[gs]" installs support for s3 or gs.

    \b
    Examples:
        fusioncache push s3://bucket/fusioncache
        fusioncache push --dry-run /mnt/shared/fusioncache
    """
    remote = Remote(url)
    key = _read_key("push", unsigned)
    store = open_store(directory, make=False)
    with show_progress("push") as progress:
        copied = exchange.push(store, remote, progress, dry_run=dry_run, key=key)
    _report_copy("push", remote, copied, dry_run, as_json)


@click.command()
@_copy_options
def pull(url: str, directory: Path | None, dry_run: bool, as_json: bool) -> None:
    """Copy entries from URL into the store.

    Entries that are here already stay as they are. It verifies the signature of each new entry first, and then every
    byte. It accepts only entries signed by a key on 'fusioncache keys list' or in FUSIONCACHE_TRUST. Instead of copying
    all, FUSIONCACHE_REMOTE=URL fetches the entries that a process needs. 'fusioncache stats' shows the fetched entries.

    After an error, copied entries stay, and the next pull continues there. Reading one pack stops after a minute.

    URL is one that 'fusioncache push' takes, or http://host/folder with a copy of such a remote. pip install
    "fusioncache[http]" installs support for http.

    \b
    Examples:
        fusioncache pull s3://bucket/fusioncache
        fusioncache pull https://example.org/fusioncache --json
    """
    remote = Remote(url)
    _require_before_making(directory, remote)
    store = open_store(directory, make=True)
    with show_progress("pull") as progress:
        copied = exchange.pull(store, remote, progress, dry_run=dry_run)
    _report_copy("pull", remote, copied, dry_run, as_json)


def _read_key(what: str, unsigned: bool) -> SigningKey | None:
    """Returns the user's signing key; None with ``unsigned``.

    Raises:
        StoreError: if this user has no key.
    """
    if unsigned:
        return None
    key = read_own_key()
    if key is None:
        raise StoreError(
            f"there is no key to sign with: make one with 'fusioncache keys new NAME', or {what} with --unsigned, "
            f"which only machines with {TRUST.name}=unsigned take"
        )
    return key


def _report_copy(what: str, remote: Remote, copied: CopyResult, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"command": what, "url": str(remote), "dry_run": dry_run, **encode_fields(copied)})
    else:
        say(_describe_copy(what, str(remote), dry_run, copied), err=False)
    # Entries of another version are left out, but they are not damaged.
    report_refused(copied.refused, fails=bool(copied.refused.keys() - {OTHER_FORMAT}))


def _require_before_making(directory: Path | None, remote: Remote) -> None:
    """Checks the remote if there is no store yet, so that a wrong address does not make one."""
    path = directory or default_path()
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        remote.require()


def _describe_copy(what: str, url: str, dry_run: bool, copied: CopyResult) -> str:
    if not (copied.entries or copied.skipped or copied.refused or copied.claimed):
        return f"nothing to {what}: {'the store' if what == 'push' else url} has no entries"
    did, side = f"would {what}" if dry_run else f"{what}ed", "to" if what == "push" else "from"
    entries, packs = format_count(copied.entries, "entry", "entries"), format_count(copied.packs, "pack", "packs")
    claimed = f"; {copied.claimed} are just pushed by another machine" if copied.claimed else ""
    size, there = format_bytes(copied.bytes), f"{copied.skipped} were there already"
    return f"{did} {entries} in {packs} ({size}) {side} {url}; {there}{claimed}"


@click.command()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="FILE", help="File to write.")
@force_option
@click.option("--model", default="", metavar="NAME", help="Only entries that this model needs, see 'ls --programs'.")
@click.option("--device", default="", metavar="TEXT", help="Omit entries for devices without TEXT in the name.")
@click.option("--driver", default="", metavar="TEXT", help="Omit entries for drivers without TEXT in the number.")
@click.option("--version", default="", metavar="TEXT", help="Omit entries for versions without TEXT, as 'torch 2.10'.")
@directory_option
@json_option
@unsigned_option
def pack(
    output: Path, force: bool, model: str, directory: Path | None, as_json: bool, unsigned: bool, **only: str
) -> None:
    """Write entries of the store into one signed file.

    With --model, the file has that model's programs and families, and all executables with the operations of its
    templates, for each layout and device in the store. 'fusioncache unpack' reads it on another machine.

    \b
    Examples:
        fusioncache pack --model Llama -o llama.fcpack
        fusioncache pack --device H100 -o all.fcpack
    """
    check_output(output, force=force)
    key = _read_key("pack", unsigned)
    written = save_pack(open_store(directory, make=False), output, model=model, only=only, key=key)
    if as_json:
        print_json({"command": "pack", **encode_fields(written)})
    else:
        signer = f"signed by {key.name}" if key else "not signed"
        say(f"wrote {format_contents(written)} ({format_bytes(written.bytes)}) to {output}, {signer}", err=False)
    report_refused(written.refused, fails=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--list", "lists", is_flag=True, help="Copy nothing, and list what is in the file.")
@click.option("--all", "all_machines", is_flag=True, help="Copy entries for other machines, too.")
@click.option("--dry-run", is_flag=True, help="Copy nothing, and print what would be copied.")
@directory_option
@json_option
def unpack(file: Path, lists: bool, all_machines: bool, dry_run: bool, directory: Path | None, as_json: bool) -> None:
    """Copy the entries of a pack for this machine into the store.

    It verifies the signature of the file before it reads anything in it, and then that of each entry, and every byte.
    It omits entries for other devices, drivers or versions, and prints the reasons; --json has the reason of each
    entry. With --all it copies these, too, for example into a container image built without a GPU.

    It exits with 1 if the file or an entry is refused, such as a damaged one.

    \b
    Examples:
        fusioncache unpack llama.fcpack
        fusioncache unpack llama.fcpack --list
        fusioncache unpack llama.fcpack --dry-run --json
    """
    trust = require_trust()
    opened = open_pack(file, trust)
    if lists:
        _print_manifest(opened, trust.name(opened.origin.key) if opened.origin.key else "", as_json)
        return
    store = open_store(directory, make=True)
    found = load_pack(store, opened, trust, all_machines=all_machines, dry_run=dry_run)
    if as_json:
        print_json({"command": "unpack", "dry_run": dry_run, **encode_fields(found)})
    else:
        say(_describe_unpacking(found, dry_run), err=False)
        for reason, number in sorted(Counter(found.unfit.values()).items()):
            say(f"not for this machine, {format_count(number, 'entry', 'entries')}: {reason}")
    report_refused(found.refused, fails=bool(found.refused))


def _describe_unpacking(found: UnpackResult, dry_run: bool) -> str:
    did = "would bring" if dry_run else "brought"
    entries = format_count(found.entries, "entry", "entries")
    return f"{did} {entries} ({format_bytes(found.bytes)}); {found.skipped} were there already"


def _print_manifest(pack: Pack, signer: str, as_json: bool) -> None:
    """Prints the contents of a pack without loading any of it."""
    manifest = pack.manifest
    if as_json:
        print_json({"command": "unpack", "pack": pack.digest, "signer": pack.origin.key, "manifest": manifest})
        return
    programs = Counter(one.name for one in manifest.entries if is_program(one.id.partition(".")[2]))
    pairs = [
        ("pack", pack.digest),
        ("signed by", signer or "none"),
        ("made by", f"fusioncache {manifest.version}"),
        ("model", manifest.model or "all of a store"),
        ("entries", f"{len(manifest.entries)} ({format_bytes(manifest.size)})"),
        ("programs", ", ".join(f"{name} ({number})" for name, number in sorted(programs.items())) or "none"),
    ]
    click.echo(format_pairs((name, escape_controls(text)) for name, text in pairs))
    counts = Counter(one.environment for one in manifest.entries)
    for place, needs in enumerate(manifest.environments):
        texts = ((name, escape_controls(text.replace("\n", "; "))) for name, text in needs.items())
        heading = format_count(counts[place], "entry needs", "entries need")
        click.echo(f"\n{heading}\n{format_pairs(texts)}")


def prune_packs(url: str, retention: Retention, *, unsigned: bool, dry_run: bool, as_json: bool) -> None:
    """Removes packs from a remote, and prints what was removed.

    Args:
        url: the address of the remote.
        retention: how long packs stay.
        unsigned: whether the new index is not signed.
        dry_run: whether to remove nothing, and print what would be removed.
        as_json: whether to print JSON.
    """
    remote = Remote(url)
    pruned = prune_remote(remote, retention, dry_run=dry_run, key=_read_key("prune", unsigned))
    if as_json:
        print_json({"command": "prune", "remote": str(remote), "dry_run": dry_run, **encode_fields(pruned)})
        return
    packs, left = format_count(pruned.packs, "pack", "packs"), format_count(pruned.packs_left, "pack", "packs")
    size, size_left = format_bytes(pruned.bytes), format_bytes(pruned.bytes_left)
    did, has = ("would remove", "would have") if dry_run else ("removed", "has")
    say(f"{did} {packs} ({size}); {remote} {has} {left} ({size_left})", err=False)
