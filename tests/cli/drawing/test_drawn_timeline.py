"""Timelines as SVG: well-formed, and every text escaped."""

from xml.etree import ElementTree

from fusioncache.cli.report_page import Bar, draw_timeline, sum_bars

BARS = (Bar(0, 2, 8, "gather", "first"), Bar(1, 3, 4, "reduce", "<b>&\"'"), Bar(2, 4, 2, "gather", "third"))


def read(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def test_bars_are_as_long_as_they_last():
    root = read(draw_timeline(BARS, (8, 12, 6, 2), "a trace"))
    rects = root.findall("rect")
    assert [(rect.get("class"), rect.get("x"), rect.get("width")) for rect in rects] == [
        ("gather", "0.0", "500.0"),
        ("reduce", "250.0", "500.0"),
        ("gather", "500.0", "500.0"),
    ]
    # The third takes the place of the first, which has ended.
    assert rects[0].get("y") == rects[2].get("y") != rects[1].get("y")


def test_texts_are_escaped():
    root = read(draw_timeline(BARS, (1, 1, 1, 1), "<i>"))
    assert [title.text for title in root.iter("title")] == ["<i>", "first", "<b>&\"'", "third"]


def test_sizes_add_up_while_bars_last():
    assert sum_bars(BARS, 5) == (8, 12, 6, 2, 0)


def test_the_highest_number_reaches_the_top_of_the_curves():
    root = read(draw_timeline(BARS, (24, 0, 0, 0), "a trace"))
    flight, alive = root.findall("path")
    height = float(root.attrib["viewBox"].split()[3])
    assert alive.attrib["d"].startswith("M0 32.0V32.0H250.0") and height == 122.0
    assert flight.attrib["d"].startswith("M0 92.0") and flight.attrib["d"].endswith("V122.0H0Z")


def test_nothing_gives_a_picture_as_well():
    assert not read(draw_timeline((), (), "nothing")).findall("rect")


def test_many_bars_at_once_share_the_last_lane():
    root = read(draw_timeline([Bar(number, 90, 1, "gather", "") for number in range(60)], [0] * 90, "many"))
    assert len({rect.get("y") for rect in root.findall("rect")}) == 24
