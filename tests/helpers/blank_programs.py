"""Programs without the parts that follow from sizes, to be compared: digests, layouts, template names, seconds."""

import re
from dataclasses import replace

from fusioncache.accelerators.programs.general import list_templates
from fusioncache.accelerators.programs.text import TemplateReference, TraceText


def blank(program):
    """Returns a program without digests and layouts, with numbered names for its templates."""
    names = {name: f"template__{number}" for number, name in enumerate(list_templates(program))}
    return rename_templates(program, names).map_traces(_blank_trace)


def rename_templates(program, names):
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None

    def rename(trace):
        source = pattern.sub(lambda found: names[found[0]], trace.source) if pattern else trace.source
        context = {names.get(name, name): reference for name, reference in trace.context.items()}
        return TraceText(trace.name, source, dict(sorted(context.items())))

    return program.map_traces(rename)


def _blank_trace(trace):
    context = {name: _blank_reference(reference) for name, reference in trace.context.items()}
    source = re.sub(r"^# Constructed by .*\n", "", trace.source, flags=re.MULTILINE)
    return replace(trace, source=source, context=context)


def _blank_reference(reference):
    if not isinstance(reference, TemplateReference):
        return reference
    return replace(reference, digest="", uses=tuple(replace(use, layouts=()) for use in reference.uses))
