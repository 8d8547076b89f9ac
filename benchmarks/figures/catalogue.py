"""All commands of the benchmarks: the question that each answers, and its last results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.figures.markdown import make_table

COMMITS: Mapping[str, str] = MappingProxyType({"step": "b059860"})
"""Commits by what results have in their place."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One command.

    Attributes:
        question: that it answers.
        command: its name behind ``python -m benchmarks.``, and options; one of another kind begins with ``python``.
        results: the files of its last results, below ``benchmarks/results`` and without their suffix.
        minutes: that these took, where they do not say so themselves; 0 if that is not known.
        page: the document that has the command with all options.
    """

    question: str
    command: str
    results: tuple[str, ...] = ()
    minutes: int = 0
    page: str = ""


def _entry(question: str, command: str, *results: str, minutes: int = 0, page: str = "") -> Entry:
    return Entry(question, command, results, minutes, page)


CATALOGUE: Mapping[str, Sequence[Entry]] = MappingProxyType(
    {
        "starts": (
            _entry(
                "What does a start cost beside Thunder and `torch.compile`?",
                "starts --width real --layers 16 --ways thunder,fusioncache,torch.compile",
                "h200/starts-real",
                minutes=9,
            ),
            _entry(
                "What does a second process wait for?",
                "starts --layers 8,32 --ways fusioncache,torch.compile,templates,thunder --limit 385",
                *("h200/second-process", "h200/second-process-real"),
                minutes=4,
            ),
            _entry(
                "What does a start on a CPU cost?",
                "starts --clock cpu --models pythia,llama-2,hf-gpt2,gemma --layers 2 --steps 50 "
                "--ways thunder-plain,torch.compile,fusioncache,fusioncache-eager",
                "cpu/cpu-start",
                minutes=6,
            ),
            _entry(
                "And with Hugging Face's models?",
                "starts --clock cpu --models GPT-2,BERT,ViT,T5,Whisper,LoRA --layers 2 --ways fusioncache,templates",
                "cpu/hugging-face",
                minutes=10,
            ),
            _entry(
                "How do all peers compare on the same work?",
                "starts --layers 8 --steps 50 --ways thunder,thunder-lru,fusioncache,torch.compile,"
                "torch.compile-dedup,torch.compile-nested,eager",
                "h200/peers-llama-8",
                minutes=5,
            ),
            _entry(
                "How does compiling grow with the depth?",
                "starts --models residual --layers 4,8,64,128 --ways own,thunder-lru --repeat 3 --steps 5",
                "h200/residual-own",
                minutes=3,
            ),
            _entry(
                "And where Thunder recomputes the stream?",
                "starts --models residual --recompute --layers 4,8,64 --ways templates,thunder",
                *("h200/residual-cached", "h200/residual-uncached"),
            ),
            _entry(
                "What does the store save beside nvFuser's own?",
                "starts --layers 2 --ways nothing,kernel_db,templates --repeat 2",
                "h200/warm-start",
                minutes=3,
            ),
            _entry(
                "Where do the seconds of tracing go?",
                "first_step --layers 8,64 --tracing fast --jobs 0",
                "h200/first-step-alone",
                minutes=2,
            ),
            _entry(
                "How many processes should compile?",
                "first_step --layers 8 --tracing fast --jobs 4,0,1,2,8",
                "h200/first-step-jobs",
                minutes=3,
            ),
            _entry("How long does `fusioncache warm` take?", "warm_ahead", "h200/warm-ahead", minutes=2),
            _entry("Do ranks share compiles?", "ranks --ranks 1,2,4", "h200/ranks", minutes=5),
            _entry("Where do nvFuser's seconds go?", "nvfuser_seconds --parallel 5", "h200/nvfuser-seconds", minutes=6),
            _entry(
                "Are the saved seconds of `stats` right?",
                "saved_seconds --backend inductor --repeat 3",
                *("cpu/saved-seconds", "h200/saved-seconds"),
            ),
        ),
        "lengths": (
            _entry(
                "What does a new length cost?",
                "lengths --lengths 64,96,65 --random 0 --later 3 --ways fusioncache,torch.compile",
                "h200/lengths-peers",
                minutes=1,
            ),
            _entry("And 200 random ones?", "lengths --ways fusioncache", "h200/lengths-swept", minutes=2),
            _entry(
                "And experts with other routing?",
                "lengths --model mixtral --layers 2 --lengths 64 --random 499 --between 64 64 --seconds 70 "
                "--ways fusioncache-thunderfx,torch.compile",
                "h100/experts",
                minutes=2,
            ),
            _entry(
                "Are gradients right at random lengths?",
                "random_lengths",
                *(f"h200/random-lengths-{name}" for name in ("encoder-decoder", "convolutional", "experts")),
                minutes=11,
            ),
            _entry(
                "Is each model right at each length?",
                "equality lengths --layers 1 --backend eager --dtype float32",
                *("cpu/length-equality-others", "cpu/length-equality"),
                minutes=10,
            ),
            _entry("What does a process hold?", "growth", "cpu/growth"),
        ),
        "later-steps": (
            _entry(
                "What does a later step take?",
                "step_overhead --together --layers 8 --steps 150 --processes 4",
                "h200/step-narrow",
            ),
            _entry(
                "How slow is the slowest of 10,000?",
                "step_overhead --layers 2 --steps 10000 --ways fusioncache,torch.compile",
                "h200/jitter-peers",
            ),
            _entry("What does a call cost the host?", "overhead", "h200/call-overhead"),
            _entry(
                "How fast are tokens?",
                "inference",
                *("h200/inference-graphs", "h200/inference-graphs-real"),
                page="inference.md#how-it-is-tested-and-measured",
            ),
            _entry("What does each accelerator save?", "prices", "h200/prices-programs", page="prices.md"),
            _entry("Did this change make it slower?", "budget", *("h200/budget", "cpu/budget")),
            _entry("What do shared models cost?", "distributed", "h100/distributed", page="schedule.md#measuring"),
            _entry("And shared sequences?", "sequence_parallel", "h100/sequence-parallel", page="tensor-parallel.md"),
        ),
        "bits": (
            _entry(
                "What does recompute save?",
                "memory --models olmo-2 --layers 16 --batch 2 --plans again,auto,inline,carry --budgets 512 --steps 5",
                *("h200/recompute-memory-olmo-2", "h200/recompute-memory-gemma-2"),
                minutes=5,
            ),
            _entry("What does backward's safety cost?", "saved_memory", "cpu/saved-memory"),
            _entry("Which folds sum a chain fastest?", "fold_widths", "h200/fold-widths", minutes=2),
            _entry(
                "Is every model right?",
                "equality training --layers real --reference lru --jobs 15",
                *("h200/models-real-depth", "cpu/models-real-width"),
            ),
            _entry(
                "Is it in a second process?",
                "equality programs --layers 2 --backend inductor",
                *("cpu/program-equality-inductor", "cpu/program-equality"),
            ),
            _entry(
                "Do Thunder's own tests pass?",
                "python tests/helpers/thunder_suite/run.py --suite gpu",
                "h200/thunder-suite",
                minutes=40,
            ),
            _entry(
                "Are traces those of Thunder?",
                "equality traces",
                *("cpu/trace-equality", "cpu/trace-equality-without"),
            ),
            _entry(
                "Does a shared model learn the same?",
                "loss_curve",
                *("cpu/loss-curve", "h100/loss-curve"),
                page="schedule.md#measuring",
            ),
            _entry(
                "What does each shortcut of tracing save?",
                "detours --layers 4 --rounds 2 --backend eager",
                "cpu/detours",
                minutes=2,
            ),
            _entry("How fast is a store of 10,000 templates?", "store", "cpu/store-load"),
            _entry("And the commands on it?", "commands", "cpu/cli-timing"),
            _entry("How do keys grow with a region?", "canonical"),
            _entry("How many files does a value pass?", "walks"),
            _entry("How large is the package?", "code_size"),
        ),
    }
)
"""The commands by the section of ``docs/measurements.md`` that has them."""


def tabulate_commands(entries: Sequence[Entry], results: Mapping[str, Any]) -> str:
    """Shows commands with their questions, and of their last results what they took, where, and at which commit.

    Args:
        entries: the commands.
        results: all of them, by their names.
    """
    columns = ("<question", "<command", "minutes", "<machine", "<last result")
    return make_table(columns, [_list_cells(entry, results) for entry in entries])


def _list_cells(entry: Entry, results: Mapping[str, Any]) -> list[str]:
    command = f"[`{entry.command}`]({entry.page})" if entry.page else f"`{entry.command}`"
    found = [results[name] for name in entry.results]
    seconds = sum(each.get("seconds", 0.0) for each in found if isinstance(each.get("seconds", 0.0), float))
    minutes = math.ceil(seconds / 60) or entry.minutes
    machines = dict.fromkeys(_name_machine(each["environment"]) for each in found)
    links = [f"[`{name_commit(results[name])}`](../benchmarks/results/{name}.json)" for name in entry.results]
    return [entry.question, command, str(minutes or "—"), ", ".join(machines) or "any", ", ".join(links) or "printed"]


def _name_machine(environment: Mapping[str, Any]) -> str:
    gpu = str(environment.get("gpu") or "").removeprefix("NVIDIA ").partition(" ")[0]
    cpus = environment.get("cpus")
    return gpu or f"{cpus} CPU{'s' * (cpus != 1)}"


def name_commit(result: Mapping[str, Any]) -> str:
    """Returns the first digits of the commit that a result is of."""
    commit = result["environment"]["commit"]
    return COMMITS.get(commit, commit)[:7]
