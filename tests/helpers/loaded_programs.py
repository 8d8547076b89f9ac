"""Programs that are written, read and built again in one process, as another process would."""

import thunder
import torch
from models import compile_with
from stored_programs import without_interpreter as no_interpretation  # noqa: F401 for tests

import fusioncache
from fusioncache.accelerators.programs.build import build_program, compile_program, write_program
from fusioncache.accelerators.programs.template_loader import TemplateLoader, find_references
from fusioncache.accelerators.programs.text import decode, encode
from fusioncache.observe.record.ledger import Ledger
from fusioncache.transform.shared_region import RegionBackends
from fusioncache.transform.templates import TemplateCalls


def write(compiled, transform, position=-1):
    """Returns the program that Thunder derived for a compiled function; asserts that its encoding can be decoded."""
    entry = thunder.compile_stats(compiled).interpreter_cache[position]
    program = write_program(entry, thunder.compile_data(compiled).fn, find_references(transform.calls()))
    assert decode(encode(program)) == program
    return program


def build(compiled, program, bytecode=None):
    """Returns a program's cache entry for a compiled function, over an empty cache, and its template calls."""
    cache, calls = fusioncache.Cache(record=False, store=False), TemplateCalls(lambda template: None)
    data = thunder.compile_data(compiled)
    backends = RegionBackends("eager", cache, Ledger(cache.ledger))
    compiled = compile_program(program, bytecode)
    return build_program(program, compiled, data.fn, TemplateLoader(cache, backends, calls, data)), calls


def load(model, program, bytecode=None):
    """Compiles a model anew and gives it a program, as if Thunder had derived it."""
    compiled, _ = compile_with(model, cache=fusioncache.Cache(record=False, store=False))
    thunder.compile_stats(compiled).interpreter_cache.append(build(compiled, program, bytecode)[0])
    return compiled


def run(compiled, model, *args):
    """Calls a model and goes backward; returns its outputs, then its buffers, then every gradient."""
    torch.manual_seed(3)
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    for parameter in parameters:
        parameter.grad = None
    output = compiled(*args)
    outputs = [output] if isinstance(output, torch.Tensor) else list(output)
    if any(tensor.requires_grad for tensor in outputs):
        sum(tensor.sum() for tensor in outputs if tensor.requires_grad).backward()
    gradients = [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    buffers = [buffer.clone() for buffer in model.buffers()] if parameters else []
    return [*(tensor.detach() for tensor in outputs), *buffers, *gradients]
