"""Real models for benchmarks and tests: at their real depth, with narrow widths unless real ones are requested.

Other modules use ``make``. Importing this package imports neither torch nor the packages that models come from.

Models that Thunder 0.2.6 cannot run, and their replacements in the catalogue:

- Mixtral's routing in litgpt and in Hugging Face picks each expert's tokens with ``torch.where(mask)``.
  ``thunder.jit`` refuses it (``NotImplementedError: torch.where() does not support only specifying a condition``), as
  the number of tokens depends on the data. ``thunderfx`` splits the model there, sees each number of tokens as a new
  shape, and torch's recompile limit leaves the rest of the model to eager execution. ``mixtral`` is therefore litgpt's
  model with every expert applied to every token and weighted with its gate, which is 0 if it was not picked: the same
  function of the same parameters.
- Hugging Face's decoders build their causal mask with ``torch.vmap``. ``thunder.jit`` refuses it (``AttributeError:
  'wrapper_descriptor' object has no attribute '__self__'``), as does ``thunderfx`` (``TypeError: tree_flatten of type
  <class 'torch.Tensor'> is not supported``). They get a finished four-dimensional mask, which they use unchanged.
- From version 5 on, Hugging Face's models set globals while they run, and ``thunder.jit`` refuses them
  (``AssertionError: trying to set .global_var of ProvenanceRecord``). ``thunderfx`` runs them.
- On a GPU Thunder's executor for attention refuses a mask without a batch dimension (``RuntimeError:
  grad_forward_sdpa: Expected all inputs to have same batch_size``), such as litgpt's mask of a sliding window. Models
  with such a mask get a batch of one row.
- GPT-2's learned positions are not in litgpt: ``gpt2-like`` has rotary ones. ``hf-gpt2`` is the real one.
"""

from __future__ import annotations

from benchmarks.zoo.catalogue import Entry, find_entry, names
from benchmarks.zoo.make import Workload, make

__all__ = ["Entry", "Workload", "find_entry", "make", "names"]
