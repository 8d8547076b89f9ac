"""The command keys: the key that signs entries for other machines, and the keys whose entries run here."""

from __future__ import annotations

import click

from fusioncache.cli.console import Column, format_table, json_option, print_json, say
from fusioncache.store import StoreError
from fusioncache.store.signing import (
    NAME,
    PUBLIC_KEY,
    Trust,
    find_keys,
    list_keys,
    make_own_key,
    put_key,
    read_own_key,
    require_trust,
)

_COLUMNS = (Column("state"), Column("name", cut=True), Column("key"))
_LEAST = 8
"""The least number of digits that name a key."""


def _check_name(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} must be of letters, digits, '.', '_', '@' and '-', at most 64")
    return value


def _check_key(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not PUBLIC_KEY.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no public key: those have 64 hexadecimal digits")
    return value


@click.group()
def keys() -> None:
    """List, make, trust and revoke the keys that sign entries.

    'fusioncache push' and 'fusioncache pack' sign the entries that they write. An entry from another machine runs here
    only if its signing key is trusted. A key is trusted if it is on the list of these commands, or in
    FUSIONCACHE_TRUST.

    \b
    Examples:
        fusioncache keys new ci
        fusioncache keys trust 3d40...c660 ci
        fusioncache keys revoke ci
    """


@keys.command()
@click.argument("name", callback=_check_name)
@json_option
def new(name: str, as_json: bool) -> None:
    """Make this user's private key for signatures, called NAME.

    It is in a file that only this user can read. FUSIONCACHE_SIGNING_KEY can have the content of that file instead, as
    in a CI job. Give the public key to the machines that are to trust it.
    """
    key = make_own_key(name)
    if as_json:
        print_json({"name": key.name, "key": key.public, "file": find_keys() / "own"})
        return
    click.echo(key.public)
    say(f"made {name}: the private key is in {find_keys() / 'own'}, and the line above is the public one")


@keys.command()
@click.argument("key", callback=_check_key)
@click.argument("name", callback=_check_name)
def trust(key: str, name: str) -> None:
    """Trust the public key KEY, and call it NAME.

    Entries that it signed run here. Trust a key only if you would run its owner's code: entries are machine code. A
    revoked key is trusted again.
    """
    put_key(key, name, "trusted")
    say(f"what {name} signs runs here now")


@keys.command()
@click.argument("key")
def revoke(key: str) -> None:
    """Revoke KEY, and run no more entries that it signed.

    KEY is a public key, its start, or its name. Entries of KEY in the store count as missing, and are made again.
    """
    found = _find(key, require_trust())
    put_key(found[0], found[1], "revoked")
    say(f"nothing that {found[1]} signed runs here any more")


def _find(wanted: str, trust_: Trust) -> tuple[str, str]:
    """Returns the key that a text names, and the key's name.

    Raises:
        StoreError: if no key or several keys match.
    """
    known = {**trust_.revoked, **trust_.trusted}
    found = [
        (key, name)
        for key, name in known.items()
        if name == wanted or (len(wanted) >= _LEAST and key.startswith(wanted))
    ]
    if not found and PUBLIC_KEY.fullmatch(wanted):
        return wanted, wanted[:_LEAST]
    if len(found) != 1:
        number = f"{len(found)} keys are" if found else "no key is"
        raise StoreError(f"{number} called {wanted!r}: 'fusioncache keys list' has those that are known")
    return found[0]


@keys.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the trusted and the revoked keys, and this user's own key."""
    rows = [{"state": state, "name": name, "key": key} for state, key, name in list_keys()]
    own = read_own_key()
    listed = {row["key"] for row in rows}
    others = {key: name for key, name in require_trust().trusted.items() if key not in listed}
    if own is not None:
        rows.insert(0, {"state": "own", "name": own.name, "key": own.public})
        others.pop(own.public, None)
    rows += [{"state": "trusted", "name": name, "key": key} for key, name in others.items()]
    if as_json:
        print_json({"keys": rows})
    elif rows:
        click.echo(format_table(_COLUMNS, rows))
    else:
        say("There are no keys: 'fusioncache keys new NAME' makes one, 'fusioncache keys trust KEY' trusts one.")
