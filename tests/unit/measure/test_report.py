"""The page made of records."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from glmspark.measure.plots import DRAWERS, plots
from glmspark.measure.record import Conditions, Drafts, Estimate, Point, Record
from glmspark.measure.report import figure, name_of, page


def sure(median: float) -> Estimate:
    return Estimate(median=median, low=median * 0.98, high=median * 1.02, samples=6)


def record(model: str = "glm", failure: str | None = None) -> Record:
    return Record(
        glmspark="0.1.0",
        began="2026-11-30T20:00:00+00:00",
        seconds=60.0,
        own_cpu_s=0.6,
        ended="whole",
        conditions=Conditions(url="http://spark1:8000/v1", model=model, context=4096, answer_tokens=64),
        points=[
            Point(
                workload="kind",
                kind="prose",
                streams=1,
                wanted_depth=0,
                rounds=6,
                decode=sure(20.0),
                throughput=sure(18.0),
                ttft=sure(0.2),
                enough=True,
                drafts=Drafts(acceptance=0.5, length=2.5, per_position=[0.8, 0.5, 0.2]),
            ),
            Point(
                workload="depth", kind="prose", streams=1, wanted_depth=1024, prompt_tokens=1020, rounds=6
            ).model_copy(update={"decode": sure(19.0), "ttft": sure(1.2), "prefill": sure(850.0)}),
            Point(workload="concurrency", kind="prose", streams=4, wanted_depth=0, rounds=2).model_copy(
                update={"throughput": Estimate(median=50.0, low=None, high=None, samples=2)}
            ),
            Point(
                workload="mixed",
                kind="prose",
                streams=4,
                wanted_depth=2000,
                failures={"cut": 2} if failure else {},
                first_failure=failure,
            ),
        ],
    )


class Cells(HTMLParser):
    """Collects the text of cells, and every tag."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self._in_cell = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "td":
            self.cells.append("")
        self._in_cell = tag == "td"

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.cells[-1] += data


def read(text: str) -> Cells:
    found = Cells()
    found.feed(text)
    return found


def test_a_page_has_a_row_for_each_point_and_says_what_is_not_sure() -> None:
    cells = read(page([record()], [])).cells
    assert cells[0] == "prose"
    assert "20.0 ± 0.4" in cells
    assert "1,024 tokens deep ?" in cells
    assert "850 ± 17" in cells
    assert "50.0 ± ?" in cells
    assert "2.50" in cells


def test_what_a_server_says_is_text_never_markup() -> None:
    text = page([record("<script>alert(1)</script>", "<img src=x onerror=alert(1)>")], [])
    assert not {"script", "img"} & read(text).tags
    assert "requests that failed: 2 cut: &lt;img" in text


def test_a_plot_is_a_picture_and_an_element() -> None:
    plot = next(plots([record(), record("other")]))
    assert plot.svg.startswith("<svg")
    assert plot.png.startswith(b"\x89PNG")
    tags = read(page([record()], [plot])).tags
    assert "svg" in tags
    assert "script" not in tags


@pytest.mark.parametrize(
    ("name", "lines"), [("kinds", 0), ("depth", 2), ("first", 2), ("streams", 2), ("drafts", 2)]
)
def test_every_plot_draws_what_two_records_hold_and_nothing_of_none(name: str, lines: int) -> None:
    from matplotlib.figure import Figure  # here: every process that collects tests would import it

    _, draw = DRAWERS[name]
    axis = Figure().subplots()
    assert draw(axis, [record(), record("other")])
    assert len(axis.get_legend_handles_labels()[1]) == 2
    assert len([line for line in axis.lines if len(line.get_xdata())]) >= lines
    assert not draw(Figure().subplots(), [])


def test_a_record_without_points_has_no_plots() -> None:
    empty = record().model_copy(update={"points": []})
    assert list(plots([empty])) == []
    assert "glm" in page([empty], [])


@pytest.mark.parametrize(
    ("workload", "name"),
    [("kind", "code"), ("depth", "2,048 tokens deep"), ("concurrency", "3 streams"), ("mixed", "mixed load")],
)
def test_points_have_names(workload: str, name: str) -> None:
    point = Point.model_validate({"workload": workload, "kind": "code", "streams": 3, "wanted_depth": 2048})
    assert name_of(point) == name


def test_a_figure_that_is_not_there() -> None:
    assert figure(None) == "-"
