"""The regions that a region was generalized with, stored beside code derived from code for any sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fusioncache.ir import Graph, Instance, codec
from fusioncache.ir.graph import inverse
from fusioncache.ir.template import FORMAT
from fusioncache.template.generalization import in_order_of_template

RELATIVES = "relatives"
"""The name of the artifact."""


@dataclass(frozen=True, slots=True)
class Relatives:
    """Regions that a region was generalized with, and the region's own order, for compiling it alone.

    Attributes:
        regions: the regions, of one skeleton.
        results: the outputs of the region in its own order.
        inputs: as ``Instance.inputs``.
        outputs: as ``Instance.outputs``.
    """

    regions: tuple[Graph, ...]
    results: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def find_own(self, region: Graph) -> Instance:
        """Returns a region, which is given in the order of its template, in its own.

        Raises:
            ValueError: if the order is that of another region.
        """
        own = Instance(region, inverse(self.inputs), tuple(range(len(region.outputs))))
        own.validate()
        found = Instance(replace(in_order_of_template(own), outputs=self.results), self.inputs, self.outputs)
        found.validate()
        found.region.validate()
        if in_order_of_template(found) != region:
            raise ValueError("the order of another region")
        return found


def encode_relatives(regions: tuple[Graph, ...], own: Instance) -> bytes:
    """Encodes regions of other sizes as JSON, with the order of a region that was generalized with them."""
    return codec.encode(Relatives(regions, own.region.outputs, own.inputs, own.outputs), format=FORMAT)


def decode_relatives(content: bytes | str) -> Relatives:
    """Returns the decoded relatives.

    Raises:
        ValueError: if the content is invalid, or of another format.
    """
    return codec.decode(Relatives, content, "relatives", format=FORMAT)
