"""Which sizes a store knows of a skeleton, and what it makes of what cannot be read."""

import json

import pytest
from drawn_regions import ENVIRONMENT, Sketch

from fusioncache.cache.generals import KeptPlace, keep_place, read_places
from fusioncache.ir import Const, Graph, TensorType
from fusioncache.store.entry import SIZES_SLOT, is_compiled
from fusioncache.template.key import skeleton_key
from fusioncache.template.skeleton import check_fits, fill, read_holes, skeleton_of


def region(*shape: int, factor: float = 0.3) -> Graph:
    s = Sketch()
    type_ = TensorType("float32", shape, "cpu")
    return s.graph(s.op("mul", s.input(type_), factor, type_=type_))


SKELETON = skeleton_of(region(2, 64))
KEY = skeleton_key(SKELETON, ENVIRONMENT)


def place(*regions: Graph, function: str = "f") -> KeptPlace:
    return KeptPlace(function, tuple(map(read_holes, regions)))


def test_a_place_comes_back_and_goes_on(store):
    regions = (region(2, 64), region(3, 96, factor=-0.7))
    keep_place(store, KEY, place(*regions), "mul")
    (kept,) = read_places(store, KEY)
    assert kept == place(*regions) and tuple(fill(SKELETON, each) for each in kept.instances) == regions
    assert not is_compiled(SIZES_SLOT)
    later = [
        place(*regions, region(2, 96)),
        place(regions[0]),
        place(region(2, 64, factor=0.7)),
        place(regions[0], function="g"),
    ]
    for each in later:
        keep_place(store, KEY, each, "mul")
    assert read_places(store, KEY) == (later[0], *later[2:])


def test_each_skeleton_and_environment_has_its_own(store):
    keep_place(store, KEY, place(region(2, 64)), "mul")
    keys = [skeleton_key(skeleton_of(region(2, 3, 4)), ENVIRONMENT)]
    keys += [skeleton_key(SKELETON, {**ENVIRONMENT, name: "another"}) for name in ENVIRONMENT]
    assert [read_places(store, key) for key in keys] == [()] * (1 + len(ENVIRONMENT))
    assert skeleton_key(skeleton_of(region(7, 9, factor=5.0)), ENVIRONMENT) == KEY
    assert read_places(store, KEY)


def test_there_are_never_more_than_so_many(store):
    values = [read_holes(region(2, width))[1] for width in range(2, 66)]
    number = {"kind": "float", "text": "0x1p3"}
    places = [{"function": "f", "instances": [[2, value, number, 2, value]]} for value in values]
    assert store.save(KEY, SIZES_SLOT, {"sizes": json.dumps({"format": 2, "places": places}).encode()})
    keep_place(store, KEY, place(region(2, 71)), "mul")
    kept = read_places(store, KEY)
    assert len(kept) == 64 and kept[-1] == place(region(2, 71))


PLACE = '{"format":2,"places":[{"function":"f","instances":%s}]}'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"format":1,"places":[]}',
        PLACE % "[]",
        PLACE % "[[2.5]]",
        PLACE.replace('"f"', "1") % "[[2]]",
        PLACE % '[[["float"]]]',
    ],
)
def test_what_does_not_decode_is_removed(store, content):
    assert store.save(KEY, SIZES_SLOT, {"sizes": content.encode()})
    with pytest.warns(RuntimeWarning, match="sizes that do not decode"):
        assert read_places(store, KEY) == ()
    assert store.peek(KEY, SIZES_SLOT) is None
    keep_place(store, KEY, place(region(2, 64)), "mul")
    assert len(read_places(store, KEY)) == 1


ODD = [(0, 1), (0, Const("float", "0x1p0")), (2, 2), (2, Const("float", "x")), (2, Const("float", "0x1p99999"))]


@pytest.mark.parametrize(("hole", "value"), [*ODD, (4, None)])
def test_what_is_in_no_hole_is_no_region(hole, value):
    holes = read_holes(region(2, 64))
    others = (*holes[:hole], *(() if value is None else (value,)), *holes[hole + 1 :])
    check_fits(SKELETON, (holes, holes))
    with pytest.raises(ValueError, match=r"hole|hexadecimal"):
        check_fits(SKELETON, (holes, others))
