"""The compiled Python of a program, beside its text: Python takes 0.2 s to compile the text of a large model.

It is kept for speed alone. It is used only by the Python that made it and for the very text that it was made of, which
a header names; otherwise the text is compiled. Like the text it is run, so that those are trusted who write the store::

    content = "fusioncache bytecode " format " " magic " " sha256-of-sources " " sha256-of-body LF body

The magic number is Python's, in hexadecimal, and the body what ``marshal`` makes of the code of the traces.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER
from types import CodeType

from fusioncache.accelerators.programs.references import TraceText
from fusioncache.accelerators.programs.text import ProgramText
from fusioncache.accelerators.steps.prologue import Rewrite, rewrite

logger = logging.getLogger("fusioncache")

FORMAT = 1


def encode_code(program: ProgramText) -> bytes:
    """Compiles the traces of a program and writes what comes of them.

    Raises:
        ValueError: if one of them is no Python.
    """
    body = marshal.dumps(tuple(map(compile_trace, program.texts())))
    return _write_header(program, body) + body


def decode_code(content: bytes, program: ProgramText) -> tuple[CodeType, ...]:
    """Reads the code of a program's texts, in their order.

    Raises:
        ValueError: if it is not the code of this program, or another Python's, or damaged.
    """
    header, _, body = content.partition(b"\n")
    if header + b"\n" != _write_header(program, body):
        raise ValueError("no code of this program for this Python")
    return marshal.loads(body)


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """What Python makes of a program.

    Attributes:
        codes: of all its texts, in their order.
        rewrite: writes its prologue anew.
    """

    codes: tuple[CodeType, ...]
    rewrite: Rewrite = rewrite


def compile_program(program: ProgramText, bytecode: bytes | None) -> CompiledProgram:
    """Returns the code of a program's texts as it was written, or compiles them if that does not fit.

    Raises:
        ValueError: if one of them is no Python.
    """
    if bytecode is not None:
        try:
            return CompiledProgram(decode_code(bytecode, program))
        except ValueError:  # another Python's, most likely; the text is what counts
            logger.info("a stored program is compiled again", exc_info=True)
    return CompiledProgram(tuple(map(compile_trace, program.texts())))


def _write_header(program: ProgramText, body: bytes) -> bytes:
    sources = hashlib.sha256()
    for trace in program.texts():
        source = trace.source.encode()
        sources.update(b"%s %d\n%s\n" % (trace.name.encode(), len(source), source))
    fields = FORMAT, MAGIC_NUMBER.hex(), sources.hexdigest(), hashlib.sha256(body).hexdigest()
    return b"fusioncache bytecode %s\n" % " ".join(map(str, fields)).encode()


def name_file(trace: TraceText) -> str:
    """Returns the name of the file that a trace seems to come from, in tracebacks: equal texts have equal names."""
    return f"thunder.{trace.name}_{hashlib.sha256(trace.source.encode()).hexdigest()[:16]}"


def compile_trace(trace: TraceText) -> CodeType:
    """Compiles one trace, in the same way whatever the options of this Python are.

    Raises:
        ValueError: if it is no Python.
    """
    try:
        return compile(trace.source, name_file(trace), "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"the text of {trace.name} is no Python: {error}") from error
