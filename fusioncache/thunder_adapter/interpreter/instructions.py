"""What each interpreted instruction costs, whatever it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def shorten_instruction(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells the stack which instruction is at work without a generator that is entered and left for each."""
    from thunder.core import interpreter

    handlers, stack_type = interpreter._default_opcode_handler_map, interpreter.InterpreterStack
    unhandled = interpreter.INTERPRETER_SIGNALS.UNHANDLED_OPCODE

    @wraps(original)
    def default_opcode_interpreter(inst: Any, /, **state: Any) -> Any:
        handler, stack = handlers.get(inst.opname), state["stack"]
        if handler is None:
            return unhandled
        if type(stack) is not stack_type or stack.provenance_inst is not None or stack.provenance_inputs is not None:
            return original(inst, **state)
        stack.provenance_inst, stack.provenance_inputs, stack.output_idx = inst, [], 0
        try:
            return handler(inst, **state)
        finally:
            stack.provenance_inst = stack.provenance_inputs = None

    return default_opcode_interpreter
