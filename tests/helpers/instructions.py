"""What the code of a function does, instruction by instruction."""

import dis
from types import CodeType
from typing import Any


def list_instructions(code: CodeType) -> tuple[Any, ...]:
    """Returns what code does, whichever constants have a place of their own."""
    found = [
        (each.opname, _show(each.argval), each.starts_line, each.is_jump_target) for each in dis.get_instructions(code)
    ]
    return code.co_name, code.co_filename, code.co_varnames, code.co_flags, found


def _show(constant: object) -> Any:
    """Returns a constant with its type, as 1 and True are equal."""
    if isinstance(constant, CodeType):
        return list_instructions(constant)
    if isinstance(constant, tuple):
        return [_show(each) for each in constant]
    return type(constant), constant
