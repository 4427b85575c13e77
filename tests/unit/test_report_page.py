"""The HTML page: self-contained, safe with any text, and its figures say the numbers in words."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
import report_samples as samples

from gpuenv.checks.model import Facts, ProbeRun
from gpuenv.report.charts import bars_from, curve_from, figures_of
from gpuenv.report.page import render_page
from gpuenv.report.svg import Bars, Curve, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuenv.report.report import Report

SAMPLES = {
    "healthy": samples.healthy,
    "faulty": samples.faulty,
    "undiagnosed": samples.undiagnosed,
    "nothing": samples.nothing,
    "hostile": samples.hostile,
    "eight_gpus": samples.eight_gpus,
}
VOID = {"meta", "input", "br", "line", "circle", "polyline", "rect"}
every_sample = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.open: list[str] = []
        self.style = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.words += f" {data}"


@every_sample
def test_page_asks_for_nothing_outside_itself(make: Callable[[], Report]) -> None:
    page = Page(render_page(make()))
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"}
    for _, attributes in page.tags:
        assert not {"src", "href", "style", "srcset", "action"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page.style
    assert "@import" not in page.style


@every_sample
def test_content_policy_allows_exactly_the_style_of_the_page(make: Callable[[], Report]) -> None:
    page = Page(render_page(make()))
    policy = next(
        str(attributes["content"])
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_hostile_text_is_shown_and_not_run() -> None:
    page = Page(render_page(samples.hostile()))
    assert "<script>alert(1)</script>" in page.words
    assert "\x1b" not in page.words
    assert "\u202e" not in page.words


def test_cause_stands_with_fix_evidence_and_consequence() -> None:
    words = " ".join(Page(render_page(samples.faulty())).words.split())
    for part in (
        "FAIL",
        "host.driver.match certain the driver library is 580.65.06",
        "On the host: stop what uses the GPUs and load the new module sudo rmmod nvidia_uvm",
        "/proc/driver/nvidia/version 575.57.08",
        "Follows from it host.nvml.init NVML does not start",
        "All 18 Failed 2 Warnings 1 Passed 14 Skipped 1",
        "not looked at: host.driver.match failed (blocked by a failed check)",
    ):
        assert part in words


def test_every_filter_has_a_label_and_a_rule() -> None:
    page = Page(render_page(samples.faulty()))
    inputs = {attributes["id"] for tag, attributes in page.tags if tag == "input"}
    labels = {attributes["for"] for tag, attributes in page.tags if tag == "label"}
    assert inputs == labels == {"f-all", "f-fail", "f-warn", "f-pass", "f-skip"}
    for name in inputs - {"f-all"}:
        assert f"#{name}:checked~.groups .row:not(.s-{str(name)[2:]})" in page.style


def test_every_picture_has_words_and_a_table() -> None:
    page = Page(render_page(samples.eight_gpus()))
    names = [tag for tag, _ in page.tags]
    assert names.count("svg") == names.count("figure") == 6
    assert names.count("desc") == 6
    assert all(attributes["role"] == "img" for tag, attributes in page.tags if tag == "svg")
    assert "bus bandwidth against message size" in page.words
    assert "float32, 8 GPUs 16 GiB 470" in " ".join(page.words.split())


def test_page_without_redaction_says_so() -> None:
    from dataclasses import replace

    assert "Not redacted" in render_page(replace(samples.healthy(), redacted=False))
    assert "Not redacted" not in render_page(samples.healthy())


class TestCurve:
    CURVE = Curve(
        title="t",
        x="size",
        x_unit="B",
        y="rate",
        y_unit="GB/s",
        series=(("", ((1024.0, 1.0), (1048576.0, 10.0), (1073741824.0, 100.0))),),
    )

    def test_equal_ratios_are_equal_distances(self) -> None:
        svg = draw(self.CURVE).svg
        match = re.search(r'<polyline[^>]*points="([^"]*)"', svg)
        assert match is not None
        points = [tuple(map(float, pair.split(","))) for pair in match[1].split()]
        (x1, y1), (x2, y2), (x3, y3) = points
        assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
        assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
        assert x1 < x2 < x3
        assert y1 > y2 > y3

    def test_ticks_of_sizes_are_powers_of_two(self) -> None:
        labels = re.findall(r'text-anchor="middle">([^<]*)<', draw(self.CURVE).svg)
        assert [label for label in labels if "iB" in label] == [
            "1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB",
        ]  # fmt: skip

    def test_numbers_stand_in_the_table(self) -> None:
        assert draw(self.CURVE).rows[1] == ("rate", "1 MiB", "10")

    @pytest.mark.parametrize(
        "value",
        [
            None,
            "text",
            {},
            {"series": []},
            {"series": [{"points": []}]},
            {"series": [{"points": [[0, 1], [1, -1], ["a", 2], [1], [float("nan"), 1]]}]},
            {"series": "abc"},
            {"series": [7]},
        ],
    )
    def test_what_cannot_be_drawn_is_left_out(self, value: object) -> None:
        assert curve_from(value) is None

    def test_one_single_point_can_be_drawn(self) -> None:
        curve = curve_from({"series": [{"name": "a", "points": [[8, 3.0]]}], "expected": 3.0})
        assert curve is not None
        assert 'cx="' in draw(curve).svg


class TestBars:
    def test_bar_below_the_floor_is_marked(self) -> None:
        svg = draw(Bars(title="t", unit="GB/s", floor=48.0, bars=(("a", 55.0), ("b", 20.0)))).svg
        assert re.findall(r'class="(bar[^"]*)"', svg) == ["bar", "bar low"]

    def test_of_many_bars_the_lowest_are_drawn_and_all_are_in_the_table(self) -> None:
        pairs = tuple((f"pair {n}", 300.0 - n) for n in range(56))
        figure = draw(Bars(title="t", unit="GB/s", bars=pairs))
        assert figure.svg.count('class="bar"') == 8
        assert ">pair 55<" in figure.svg
        assert ">pair 0<" not in figure.svg
        assert "the lowest 8; 48 more, up to 300 GB/s" in figure.svg
        assert len(figure.rows) == 56

    def test_thresholds_are_named_below_the_bars_one_a_line(self) -> None:
        svg = draw(Bars(title="t", unit="GB/s", floor=48.0, expected=50.0, bars=(("a", 49.0),))).svg
        places = re.findall(r'y="([\d.]+)" text-anchor="start">(floor|expected) ', svg)
        assert [words for _, words in places] == ["floor", "expected"]
        assert float(places[1][0]) - float(places[0][0]) >= 12

    def test_length_is_in_proportion(self) -> None:
        svg = draw(Bars(title="t", unit="s", bars=(("a", 10.0), ("b", 5.0)))).svg
        long, short = (
            float(width) for width in re.findall(r'class="bar"[^>]*width="([\d.]+)', svg)
        )
        assert long == pytest.approx(2 * short, abs=0.2)

    @pytest.mark.parametrize("value", [None, {}, {"bars": []}, {"bars": [["a", "b"], 3, ["a"]]}])
    def test_what_cannot_be_drawn_is_left_out(self, value: object) -> None:
        assert bars_from(value) is None

    def test_nothing_but_zeros_can_be_drawn(self) -> None:
        assert "svg" in draw(Bars(title="t", unit="s", bars=(("a", 0.0),))).svg


def test_space_is_told_once_for_each_file_system() -> None:
    gib = 2**30
    places = {
        "tmp": {"mount": "/", "total": 100 * gib, "free": 25 * gib},
        "home": {"mount": "/", "total": 100 * gib, "free": 25 * gib},
        "shm": {"mount": "/dev/shm", "total": gib // 16, "free": gib // 16},
        "odd": {"mount": "/x", "total": None, "free": 0},
    }
    facts = Facts(probes={"host.storage": ProbeRun(status="ok", facts={"places": places})})
    report = samples.report_of(samples.healthy().diagnosis, facts)
    space = next(figure for figure in figures_of(report) if figure.title == "Space in use")
    assert space.rows == (
        ("tmp and 1 more: 75 of 100 GiB", "75 %"),
        ("shm: 0 of 0.0625 GiB", "0 %"),
    )
    (width, *_) = re.findall(r'class="bar"[^>]*width="([\d.]+)', space.svg)
    assert float(width) == pytest.approx(0.75 * 404, abs=0.5)


def test_figures_are_bandwidth_memory_training_and_time() -> None:
    assert [figure.title for figure in figures_of(samples.eight_gpus())] == [
        "NCCL all-reduce, 8 GPUs",
        "Matrix product, bfloat16",
        "Host to device, pinned",
        "Memory in use before the checks",
        "Loss of the test training",
        "Time by probe",
    ]
