"""Figures that can be read: no text lies on another, hue and dash mean the same everywhere, numbers are the tables'."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from fedaudit.attacks.score_names import signal_name
from fedaudit.reports.evidence import TABLES
from fedaudit.reports.figures import membership, trade_offs
from fedaudit.reports.figures.drawing import COLOURS, LOW, fold_titles, grid, look_of, mark, place_notes, styled
from fedaudit.reports.papers import ablation
from tests.figure_texts import overlapping, texts

METHODS = [f"Method {i}, {noise}" for i in range(4) for noise in ("no noise", "ε 10", "ε 0.1")]  # 12 runs
SIGNALS = ["renyi/2/10/caption", "outputfree/projection"]
THREATS = ["prompt-user", "released-model", "peer", "server", "clustering-server", "owner"]


@pytest.fixture(autouse=True)
def _in_the_style_of_reports() -> Iterator[None]:
    with styled():
        yield


def drawn(plot: Any) -> Figure:
    fold_titles(plot[0])
    return plot[0]


def rounds(spread: float) -> pd.DataFrame:
    """Rounds of 12 runs whose ends lie within `spread` of each other."""
    rows = [
        (method, 0, r, "all members", signal, 0.5 + 0.01 * r + spread * i, 0.4, 0.7, 30, 2.2 - 0.01 * r + spread * i)
        for i, method in enumerate(METHODS) for signal in SIGNALS for r in range(1, 11)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["method", "seed", *TABLES["rounds"].split(), "heldout_loss"])


class TestPlaces:
    @pytest.mark.parametrize(("n", "spread"), [(1, 0.0), (2, 1e-6), (12, 0.3), (24, 0.0), (24, 0.004)])
    def test_notes_stand_beside_their_points_and_on_no_other(self, n: int, spread: float) -> None:
        figure, axes = grid(1, 3, height=2.9, margins=LOW)
        panel = axes[0][1]
        notes = [(f"method {i} (97 %)", 1 + spread * i / n, 0.5 + 0.1 * spread * (i % 3)) for i in range(n)]
        panel.plot([0, 2], [0.4, 1.0])
        place_notes(panel, notes)
        shown = {text: box for text, box in texts(figure) if text.startswith("method")}
        assert [*shown] == [text for text, _, _ in notes]
        assert not overlapping(figure)
        inside = panel.get_window_extent().padded(1)
        assert Bbox.union([inside, *shown.values()]).extents == pytest.approx(inside.extents)

    def test_the_same_note_stands_once_at_a_place_and_none_without_room(self) -> None:
        figure, axes = grid(1, 1, height=2.9, margins=LOW)
        axes[0][0].plot([0, 2], [0.0, 1.0])
        place_notes(axes[0][0], [("round 1", 1.0, 0.5), ("round 1", 1.0001, 0.5), ("round 1", 1.9, 0.1)])
        assert [text for text, _ in texts(figure)].count("round 1") == 2
        figure, axes = grid(1, 1, height=0.3, margins=LOW)
        axes[0][0].plot([0, 2], [0.0, 1.0])
        place_notes(axes[0][0], [("long " * 40, 1.0, 0.5)])
        assert not [text for text, _ in texts(figure) if "long" in text]


class TestTexts:
    @pytest.mark.parametrize("spread", [0.0, 0.01])
    def test_ends_of_twelve_paths(self, spread: float) -> None:
        figure = drawn(membership._tradeoff_plot(rounds(spread), METHODS, SIGNALS))
        assert {"round 1", "round 10"} <= {text for text, _ in texts(figure)}
        assert overlapping(figure) == []

    @pytest.mark.parametrize("spread", [0.0, 0.2])
    def test_a_front_of_nearly_equal_points(self, spread: float) -> None:
        rows = [
            {"world": "w", "threat_model": threat, "point": f"dpfpl epsilon={i / 10}", "method": "dpfpl",
             "utility": 50 + spread * i, "utility_low": None, "utility_high": None, "auroc": 0.5 + spread * i / 100,
             "auroc_low": None, "auroc_high": None, "front": True, "front_p": i / 10, "utility_metric": "overall"}
            for threat in THREATS for i in range(trade_offs.NAMED)
        ]  # fmt: skip
        figure = drawn(trade_offs.front_plot(pd.DataFrame(rows), ["w"]))
        assert len([text for text, _ in texts(figure) if text.startswith("epsilon=")]) == len(rows)
        assert overlapping(figure) == []

    def test_roc_panels_of_many_adversaries_and_long_names(self) -> None:
        rows = [
            (method, 0, threat, way, "own members", "held-out", signal, fpr, fpr**0.8, 0.9 * fpr, fpr**0.7, 0.01)
            for method in METHODS for threat in THREATS for way in ("exact", "server-fill") for signal in SIGNALS
            for fpr in (0.01, 0.1, 1.0)
        ]  # fmt: skip
        curves = pd.DataFrame(rows, columns=["method", "seed", *TABLES["curves"].split()])
        figure = drawn(membership._roc_plot(curves, METHODS, SIGNALS))
        assert overlapping(figure) == []
        titles = [" ".join(panel.get_title(loc="left").split()) for panel in figure.axes]
        assert len({*titles}) == len(titles) == len(THREATS) * len(SIGNALS)
        assert {title.split()[0] for title in titles} == {*THREATS}
        assert all("MaxRényi" in title or "output-free" in title for title in titles)

    def test_clients_and_rounds_of_twelve_runs_and_a_papers_figure_of_many_panels(self) -> None:
        rows = [
            (method, 0, threat, "true state", f"client-{k:02d}", signal, 0.5, 9, 9)
            for method in METHODS for threat in THREATS for k in range(6) for signal in SIGNALS
        ]  # fmt: skip
        clients = pd.DataFrame(rows, columns=["method", "seed", *TABLES["clients"].split()])
        assert overlapping(drawn(membership._clients_plot(clients, METHODS, SIGNALS))) == []
        assert overlapping(drawn(membership._rounds_plot(rounds(0.001), METHODS, SIGNALS))) == []
        assert overlapping(drawn(ablation.plot(ablation.paper("OxfordFlowers")))) == []


class TestNumbers:
    def test_rounds_show_the_numbers_of_their_table(self) -> None:
        """Value and interval of every round, in the panel of its score and the look of its run."""
        table = rounds(0.001)
        figure = drawn(membership._rounds_plot(table, METHODS, SIGNALS))
        for panel, signal in zip(figure.axes, SIGNALS, strict=True):
            assert panel.get_title(loc="left") == signal_name(signal)
            bars = {container.get_label(): container for container in panel.containers}
            for method in METHODS:
                expected = table[(table.method == method) & (table.signal == signal)]
                line, _, (interval,) = bars[f"{method}: all members"]
                assert line.get_ydata() == pytest.approx(expected.auroc.to_numpy(), abs=0)
                assert np.rint(np.asarray(line.get_xdata(), float)) == pytest.approx(expected["round"].to_numpy())
                ends = np.array([segment[:, 1] for segment in interval.get_segments()])
                assert ends == pytest.approx(expected[["low", "high"]].to_numpy())
                assert line.get_color() == look_of(METHODS, method)["color"]


class TestLooks:
    @pytest.mark.parametrize("form", ["{}, {}, rank 8", "{} epsilon={} rank=8", "{}:rank=8:epsilon={}"])
    def test_hue_is_the_method_and_dash_the_noise(self, form: str) -> None:
        levels: Mapping[str, Any] = {"10": "ε 10", "0.1": "ε 0.1", "none": "no noise"}
        words = levels if "{}, {}" in form else dict.fromkeys(levels)
        names = {(m, e): form.format(m, words[e] or e) for m in ("dpfpl", "fedotp") for e in levels}
        looks = {key: look_of([*names.values()], name) for key, name in names.items()}
        for a, b in itertools.combinations(looks, 2):
            assert (looks[a]["color"] == looks[b]["color"]) == (a[0] == b[0])
            assert (looks[a]["linestyle"] == looks[b]["linestyle"]) == (a[1] == b[1])
            assert looks[a]["marker"] != looks[b]["marker"]
        assert looks["dpfpl", "none"]["linestyle"] == "-"
        assert all(mark([*names.values()], names[key])["colour"] == look["color"] for key, look in looks.items())

    def test_a_hollow_marker_and_a_tint_keep_the_hue(self) -> None:
        full, pale = (look_of(["a", "b"], "b", tint=i)["color"] for i in (0, 1))
        full, pale = np.array(to_rgb(full)), np.array(to_rgb(pale))
        assert (pale - full) / (1 - full) == pytest.approx(0.4, abs=0.01)  # the share of white
        assert look_of(["a"], "a", hollow=True)["markerfacecolor"] == "white"

    @pytest.mark.parametrize("blind", ["nobody", "protanopia", "deuteranopia", "tritanopia"])
    def test_hues_are_told_apart_by_the_colour_blind(self, blind: str) -> None:
        """At full strength (Machado et al. 2009), as differences of CIE Lab; 2.3 is just to be seen."""
        seen = [lab(SEEN[blind], colour) for colour in COLOURS]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 15


SEEN = {
    "nobody": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]),
}  # fmt: skip


def lab(seen: Any, colour: str) -> Any:
    """CIE Lab, under D65, of what is seen of a colour."""
    parts = np.array(to_rgb(colour))
    rgb = seen @ np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
