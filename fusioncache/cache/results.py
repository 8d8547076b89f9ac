"""Results of a region put right, so that they are the tensors that torch's own operations would give.

Thunder knows no strides. Where a region's results lie otherwise in memory than those of plain Thunder, later code does
something else or raises an error: ``view(-1)``, a guard of ``torch.compile``. A compiler may also return one object for
two results, or an argument as a result.

So each first call for a layout ends with a look at its results. What is not as it should be is put right, in this call
and in later ones. Where all is right, a later call does nothing.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.cache.expected_results import ExpectedResults
from fusioncache.ir import Instance

logger = logging.getLogger("fusioncache")

Fix = Callable[[Sequence[Any], list[Any]], None]
"""Takes the arguments and the results of a call, and replaces results."""


def as_torch_gives(
    run: Run, instance: Instance, args: Sequence[Any], results: Sequence[Any]
) -> tuple[Run, Sequence[Any]]:
    """Returns a function whose results are the tensors that torch would give, and what it returns for these arguments.

    Args:
        run: computes the region, for arguments of this layout.
        instance: the region.
        args: of the first call, in the order of the template.
        results: of that call.
    """
    try:
        fixes = _find_fixes(ExpectedResults(instance, args), args, results)
    except Exception as error:  # whatever it is, the results are right but for their layout
        logger.info("what torch's results would be is not known", exc_info=error)
        return run, results
    if not fixes:
        return run, results

    def run_and_fix(args: Sequence[Any]) -> Sequence[Any]:
        return _fix(fixes, args, run(args))

    return run_and_fix, _fix(fixes, args, results)


def _fix(fixes: Sequence[Fix], args: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    fixed = list(results)
    for fix in fixes:
        fix(args, fixed)
    return fixed


def _find_fixes(expected: ExpectedResults, args: Sequence[Any], results: Sequence[Any]) -> list[Fix]:
    """Returns what has to be done to results so that they are as expected."""
    given = {_memory(tensor): index for index, tensor in enumerate(expected.args) if isinstance(tensor, torch.Tensor)}
    taken = {_memory(arg) for arg in args if isinstance(arg, torch.Tensor)}
    fixes: list[Fix] = []
    changed: set[int] = set()
    for memory, group in _group_by_memory(expected.results).items():
        if memory in given:
            wrong = _find_wrong_views(group, given[memory], args, results)
            fixes += [_take_view_of(given[memory], index, group[index]) for index in wrong]
            changed.update(wrong)
        elif not _shares_alike(group, results) or _memory(results[next(iter(group))]) in taken:
            fixes.append(_share(group, results, taken))
            changed.update(group)
        taken.update(_memory(results[index]) for index in group)
    return [*fixes, *_find_same(expected, args, results, changed), *_find_unlike(expected, results, changed)]


def _group_by_memory(tensors: Sequence[Any]) -> Mapping[int, dict[int, Any]]:
    """Returns tensors with elements by their position, those with one memory together."""
    groups: dict[int, dict[int, Any]] = defaultdict(dict)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            groups[_memory(tensor)][index] = tensor
    return groups


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _has_strides(tensor: Any, expected: Any) -> bool:
    """Tells whether strides are as expected, but for those of dimensions of one element."""
    pairs = zip(expected.shape, tensor.stride(), expected.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


def _find_wrong_views(group: Mapping[int, Any], source: int, args: Sequence[Any], results: Sequence[Any]) -> list[int]:
    """Returns which results are not the views of an argument that they should be."""
    base = args[source]
    return [
        index
        for index, tensor in group.items()
        if _memory(results[index]) != _memory(base)
        or results[index].storage_offset() != base.storage_offset() + tensor.storage_offset()
        or not _has_strides(results[index], tensor)
        or not _is_view_if(tensor, results[index])
    ]


def _take_view_of(source: int, index: int, expected: Any) -> Fix:
    shape, strides, offset = expected.shape, expected.stride(), expected.storage_offset()

    def take(args: Sequence[Any], results: list[Any]) -> None:
        base = args[source]
        results[index] = base.as_strided(shape, strides, base.storage_offset() + offset)

    return take


def _shares_alike(group: Mapping[int, Any], results: Sequence[Any]) -> bool:
    """Tells whether results have the strides that they should have, and the parts of one memory."""
    offsets = {results[index].storage_offset() - tensor.storage_offset() for index, tensor in group.items()}
    return (
        len({_memory(results[index]) for index in group}) == 1
        and (len(group) == 1 or len(offsets) == 1)
        and all(_has_strides(results[index], tensor) for index, tensor in group.items())
        and (len(group) == 1 or all(_is_view_if(tensor, results[index]) for index, tensor in group.items()))
    )


def _is_view_if(expected: Any, result: Any) -> bool:
    """Tells whether autograd knows of a result that it is a view, if it should."""
    return not expected._is_view() or result._is_view() or result.is_inference()


def _share(group: Mapping[int, Any], results: Sequence[Any], taken: Collection[int]) -> Fix:
    """Gives results one memory, that of the one among them that has all of it, or new memory."""
    whole = next((index for index, tensor in group.items() if not tensor._is_view()), None)
    if whole is None:
        return _copy_all(group)
    stays = _has_strides(results[whole], group[whole]) and _memory(results[whole]) not in taken
    shape, strides = group[whole].shape, group[whole].stride()
    views = [(i, t.shape, t.stride(), t.storage_offset()) for i, t in group.items() if i != whole]

    def share(args: Sequence[Any], results: list[Any]) -> None:
        base = results[whole]
        if not stays:
            base = torch.empty_strided(shape, strides, dtype=base.dtype, device=base.device).copy_(base)
            results[whole] = base
        for index, shape_, strides_, offset in views:
            results[index] = base.as_strided(shape_, strides_, base.storage_offset() + offset)

    return share


def _copy_all(group: Mapping[int, Any]) -> Fix:
    """Gives results parts of one new memory, of which none has all."""
    first = next(iter(group.values()))
    size = first.untyped_storage().nbytes() // first.element_size()
    parts = [(index, tensor.shape, tensor.stride(), tensor.storage_offset()) for index, tensor in group.items()]

    def copy(args: Sequence[Any], results: list[Any]) -> None:
        tensor = results[parts[0][0]]
        memory = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
        for index, shape, strides, offset in parts:
            part = memory.as_strided(shape, strides, offset)
            _write(part, results[index])
            results[index] = part

    return copy


def _write(part: Any, values: Any) -> None:
    """Writes values where each element of memory is written once."""
    for dimension, stride in enumerate(part.stride()):
        if stride == 0:
            part, values = part.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    part.copy_(values)


def _find_same(
    expected: ExpectedResults, args: Sequence[Any], results: Sequence[Any], changed: Collection[int]
) -> Iterator[Fix]:
    """Yields what makes tensors of their own of results that are one object with an argument or another result."""
    objects: dict[int, list[Any]] = defaultdict(list)
    for arg, tensor in zip(args, expected.args, strict=True):
        objects[id(arg)].append(tensor)
    for index, (result, tensor) in enumerate(zip(results, expected.results, strict=True)):
        if index in changed or not isinstance(tensor, torch.Tensor):
            continue
        known = objects[id(result)]
        if known and not any(tensor is each for each in known):
            yield _take_view(index)
        known.append(tensor)


def _find_unlike(expected: ExpectedResults, results: Sequence[Any], changed: Collection[int]) -> Iterator[Fix]:
    """Yields what gives results the strides of torch where these say nothing: in dimensions of one element."""
    for index, (result, tensor) in enumerate(zip(results, expected.results, strict=True)):
        if index in changed or not isinstance(tensor, torch.Tensor) or any(tensor is arg for arg in expected.args):
            continue
        if result.stride() != tensor.stride():
            yield _set_strides(index, tensor)


def _set_strides(index: int, expected: Any) -> Fix:
    shape, strides = expected.shape, expected.stride()

    def set_(args: Sequence[Any], results: list[Any]) -> None:
        results[index].as_strided_(shape, strides)

    return set_


def _take_view(index: int) -> Fix:
    def take(args: Sequence[Any], results: list[Any]) -> None:
        results[index] = results[index].view(results[index].shape)

    return take
