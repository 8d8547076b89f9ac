"""Tensor parallelism: the layers of a model cut among ranks, which compute their parts of each and exchange results.

Thunder 0.2.6 has ``thunder.distributed.column_parallel`` and ``row_parallel``. They need CUDA, fail for a gated MLP,
and gather and split between layers where they do not see that one feeds the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusioncache.distributed.groups import find_group
from fusioncache.distributed.parallel_layers import Role, find_cut_parameters


def tensor_parallel(
    model: Any,
    group: Any = None,
    *,
    column: Sequence[str] = (),
    row: Sequence[str] = (),
    gathered: Sequence[str] = (),
    sequence: bool = False,
    joined: bool = False,
    broadcast_from: int | None = None,
    release: bool = False,
    executors: Sequence[Any] | None = None,
    transforms: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Compiles a model whose layers are cut among ranks, with ``FusionCache``.

    All ranks give it the same input, and get the same output. Layers are named by patterns, as in ``"*.mlp.gate"``. The
    gradient of a cut parameter is a part, that of a whole one is the same on each rank::

        tensor_parallel(
            model,
            column=["embedding", "*.q", "*.k", "*.v", "*.gate", "*.up"],
            row=["*.proj", "*.down"],
            gathered=["head"],
        )

    Args:
        model: a module, the same on each rank, on the device where it is to run.
        group: a process group, or a mesh of one dimension; None is the job's own group.
        column: layers that give each rank a part of their result: ``Linear`` ones, for which a row layer must come
            behind, and ``Embedding``s, whose vocabulary is cut and whose results ranks add up.
        row: ``Linear`` layers of whose input each rank has a part. Ranks add up what they give.
        gathered: ``Linear`` layers that are cut as column ones, and whose result each rank gets whole: a head.
        sequence: whether ranks also share what is between these layers, by the rows of a sequence: they then scatter
            the sums of row layers, and gather rows for column layers. Where they do not divide a sequence, it is whole.
        joined: with ``sequence``: whether a gather is computed at once with the products behind it, and a row layer
            with the scatter behind it, in torch's symmetric memory. All ranks have to ask for it, and to be able to:
            over NCCL, on GPUs of one node that read each other's memory. Else all stays as it is, and
            ``stats().bypasses`` has the reason. Sums may be rounded otherwise.
        broadcast_from: the rank of the group whose parameters all take; None: each takes its own.
        release: whether ``model`` lets go of whole parameters of which this rank keeps a part. It cannot run on its own
            then.
        executors: for ``thunder.jit``; None are those of ``fusioncache.executors()``.
        transforms: more of them, behind this one and in front of ``FusionCache``.
        options: of ``FusionCache``, such as ``schedule``.

    Raises:
        CutError: if a layer cannot be cut in this way, with its name. When the model is first called: if it does
            something with a part of a tensor of which it is not known how ranks do it together.
        ValueError: if products are to be joined, and sequences are not shared.
    """
    import fusioncache
    from fusioncache.distributed.parallel_transform import TensorParallelTransform
    from fusioncache.thunder_adapter.schedule_api import thunder

    if joined and not sequence:
        raise ValueError("joined=True joins what ranks exchange of a sequence with products: it takes sequence=True")
    group = find_group(group)
    roles = {Role.COLUMN: column, Role.ROW: row, Role.GATHERED: gathered}
    parameters = find_cut_parameters(model, roles, group.size())
    caching = fusioncache.FusionCache(**options)
    cutting = TensorParallelTransform(
        group,
        parameters,
        of_rows=sequence,
        joins=sequence and _agree_on_joining(model, group, caching, wanted=joined),
        report_left=caching.report_left,
        broadcast_from=broadcast_from,
        release=release,
    )
    return thunder.jit(
        model,
        executors=fusioncache.executors() if executors is None else executors,
        transforms=[cutting, *transforms, caching],
    )


def _agree_on_joining(model: Any, group: Any, caching: Any, *, wanted: bool) -> bool:
    """Tells whether all ranks join products; counts why not where that was asked for."""
    from fusioncache.distributed.joining_agreement import agree_on_joining

    reason = agree_on_joining(group, next(model.parameters()).device, wanted=wanted)
    if wanted and reason:
        caching.report_left(f"products are not joined with collectives: {reason}")
    return not reason
