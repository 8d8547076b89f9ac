"""A record and a store in which all names, paths and lists are long, so that what prints them has to fit them."""

from __future__ import annotations

import pytest
from commands import save_other
from kept_programs import FORWARD, OWN_READS, SavedProgram, make_outline, save_family
from recorded_templates import count_compile, make_cast_template, make_chain_template, save_ledger

from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import Line, RegionRecord, Source
from fusioncache.observe.record.stats import NOT_GIVEN
from fusioncache.store import Store
from fusioncache.template.key import make_key

_MODEL = "MultimodalRetrievalAugmentedGenerationTransformerWithMixtureOfExpertsForConditionalGeneration"
_SCRIPT = "finetune_the_multimodal_retrieval_augmented_generation_model_on_the_cluster.py"
_FILE = f"/home/me/projects/multimodal/retrieval_augmented_generation/models/{_SCRIPT}"
_WORDS = "residual_scaled_dot_product_attention_with_rotary_embedding_and_layer_normalization"
_MODULE = "language_model.decoder.transformer_blocks.{}.feed_forward_network.mixture_of_experts.experts.7.projection"
_OPTION = "options_of_the_compiler_for_this_model=(enable: matmul_prologue_fusion, disable: resize_scheduler)"
_NARROW, _WIDE = make_chain_template(_WORDS), make_chain_template(f"{_WORDS}_again", _OPTION)
_CAST = make_cast_template(f"convert_{_WORDS}")
_TENSOR = "torch.Tensor torch.bfloat16 (32, 4096, 128) (524288, 128, 1) cuda:0 requires_grad"
_INPUTS = [f"a_rather_long_name_of_the_argument_number_{number}" for number in range(6)]
_ARGUMENTS = "\n".join(["args 1 mask", f"args.0 {_TENSOR}", *(f"kwargs.{name} {_TENSOR}" for name in _INPUTS)])
_READS = (
    OWN_READS[0],
    ("global", f"{_SCRIPT[:-3]}.{_MODEL}.A_CONSTANT", f"'{'the value of a constant that is a text, and long; ' * 4}'"),
)
_FORWARD = FORWARD.replace("(x, w, None)", f"({', '.join(_INPUTS)})")
_REASON = (
    "a custom operator of the model's own, finetune::scaled_dot_product_attention_with_rotary_embedding, has no "
    "translation"
)


def record_long_runs(patch: pytest.MonkeyPatch) -> None:
    """Records two runs of scripts, models and modules with long names."""
    ledger = _count(Ledger())
    save_ledger(patch, ledger, argv=[_SCRIPT, "--learning-rate", "0.0001", "--gradient-accumulation-steps", "16"])
    save_other(patch, _count(Ledger()))


def _count(ledger: Ledger) -> Ledger:
    ledger.history.begin_trace(_MODEL)
    for template in (_NARROW, _WIDE, _CAST):
        arities = () if template is _CAST else (5,)
        ledger.count_region(template, arities, hit=False)
        count_compile(ledger, template, 12345.678)
        ledger.history.add(*(_make_region(number, template.key.digest, arities) for number in (0, 31)))
    for number in range(1, 60, 2):
        ledger.count_region(_NARROW, (number,), hit=True)
    for phase, seconds in (("dynamo", 2.25), ("splitting", 2.5), ("other_compilers", 4.75), ("other", 4.5)):
        ledger.history.add_seconds(phase, seconds)
    ledger.count_bypass(f"{NOT_GIVEN}{_REASON}", region=False)
    ledger.count_bypass(f"{NOT_GIVEN}addmm only has an automatic torch fallback in thunder", region=False)
    ledger.count_bypass(_REASON)
    ledger.count("own_sizes", of=_REASON)
    ledger.emit("program refused", reason=f"{_MODEL} has {_REASON}")
    for part in range(1, 12):
        ledger.count_program_loaded(f"{_MODEL} (part {part} of 11)", 0.5, 38.5)
    ledger.count("not_captured", of=_REASON)
    return ledger


def _make_region(number: int, digest: str, arities: tuple[int, ...]) -> RegionRecord:
    source = Source(_MODULE.format(number), number, (Line(_FILE, 1234),))
    place = (_MODEL, "forward", 0, number, f"nvFusion{number}")
    outcome = ("hit", f"compile failed: {_REASON}") if number else ("miss", None)
    return RegionRecord(*place, digest, *outcome, arities, "one launch", source, 3, 2, 1)


def fill_long_store(store: Store) -> dict[str, str]:
    """Saves programs, families and executables with long names. Returns the IDs of some."""
    key = {"arguments": _ARGUMENTS}
    first = SavedProgram({**key, "model": _describe_model(1)}, _READS, name=_MODEL)
    name = f"{_MODEL} (part 12 of 34)"
    reason, sizes = "compares two lengths that the model was given", [(1234, 123456 * number) for number in range(1, 7)]
    outline = make_outline("kwargs['a_rather_long_name_of_the_argument'][1]", reason, f"{_FILE}:12", sizes)
    second = SavedProgram({**key, "model": _describe_model(2)}, _READS[:1], _FORWARD, name=name)
    words = {
        "PROGRAM": first.save(store)[:12],
        "CHANGED": second.save(store)[:12],
        "FAMILY": save_family(store, "family", outline, _MODEL, _READS, "args 1")[:12],
        "TEMPLATE": _NARROW.key.digest[:12],
        "OTHER": _WIDE.key.digest[:12],
    }
    _save_executable(store, _CAST.graph, {"code": b"print()\n"})
    _save_executable(store, _NARROW.graph, {"refused": _REASON.encode()})
    return words


def _describe_model(seed):
    lines = [f"model.{_MODULE.format(number)}.dropout_probability {seed + number / 8}" for number in range(24)]
    return "\n".join([f"model module {_SCRIPT[:-3]}.{_MODEL}", *lines])


def _save_executable(store, graph, artifacts):
    key = make_key(graph, {"backend": "eager", "settings": f"torch.{_WORDS} True\n" * 2})
    assert store.save(key, "eager", artifacts, name=f"{_WORDS}_{key.digest[:8]}", seconds=1.5)
