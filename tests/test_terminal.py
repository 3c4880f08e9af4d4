"""Tables in windows of every width: kept pictures of them, and laws: no name and no number is lost."""

import re
from collections import Counter

import pytest
from rich.console import Console

from fedaudit.attacks.score_names import signal_name
from fedaudit.command import listing, window
from fedaudit.command.window import WindowColumn, lines
from tests.real_terminal import in_terminal
from tests.terminal_windows import CASES, HERE, WIDTHS, kept, printed

AGAIN = "python -m tests.terminal_windows writes it anew"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("case", CASES)
def test_tables_look_as_they_are_kept(case: str, width: int) -> None:
    assert printed(case, width) == kept(case, width).read_text("utf-8"), AGAIN


def test_every_kept_window_is_of_a_case_and_no_line_is_wider() -> None:
    assert {path.name for path in HERE.iterdir()} == {kept(case, width).name for case in CASES for width in WIDTHS}


@pytest.mark.parametrize("case", CASES)
def test_no_line_is_wider_than_the_window(case: str) -> None:
    for width in (*range(80, 92), 99, 100, 101, 119, 120, 121, 139):
        assert max(map(len, printed(case, width).splitlines())) <= width


@pytest.mark.parametrize("case", ["lora", "elsewhere", "many"])
def test_every_window_says_the_same_characters(case: str) -> None:
    """However a window breaks its lines: of narrow ones, and of those that have the controls."""

    def characters(width: int) -> Counter[str]:
        return Counter(re.sub(r"[\s─]", "", printed(case, width)))

    assert len({tuple(sorted(characters(width).items())) for width in (*range(80, 90), 99, 109, 119)}) == 1
    assert len({tuple(sorted(characters(width).items())) for width in (120, 121, 130, 150, 199)}) == 1
    lost = characters(80) - characters(120)
    assert not lost - Counter("controls(basemodel,blind):inawindowof120columns,andinthereport")


@pytest.mark.parametrize("case", ["lora", "elsewhere", "many"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_stands_in_one_piece(case: str, width: int) -> None:
    findings, _ = CASES[case]()
    text = printed(case, width)
    for f in (f for f in findings if f["seed"] == 0 and f["value"] is not None):
        assert f"{f['value']:.3f} [{f['low']:.3f}, {f['high']:.3f}]" in text
        place = f"{f['threat_model']}: model {f['way']}, {f['population']}"
        assert place in re.sub(r"\s+", " ", text)
        if f["p"] is not None:
            assert f" {f['p']:.2g} " in text
            assert f" {f['p_adjusted']:.2g} ({f['family_n']:,}) " in text
        assert signal_name(f["signal"]) in text or width == 80


@pytest.mark.parametrize("width", [20, 40, 80])
def test_lines_lose_no_character(width: int) -> None:
    """Every cell is of a letter of its own, and longer than the window."""
    letters = iter("abcdefghijklmnop")
    rows = [[next(letters) * (i + 3) * 5 for i in range(3)] for _ in range(4)]
    columns = [WindowColumn("X", 4), WindowColumn("Y", 2), WindowColumn("Z")]
    heads, *blocks = lines(columns, {"one": rows[:3], "two": rows[3:]}, width)
    said = Counter("".join(line for block in blocks for line in block).replace(" ", ""))
    assert said == Counter("".join(cell for row in rows for cell in row))
    assert "".join(heads).split() == ["X", "Y", "Z"]


def test_numbers_are_never_broken_and_stand_below_each_other() -> None:
    columns = [WindowColumn("score", 5), WindowColumn("AUROC")]
    rows = [["loss", "0.5 [0.4, 0.6]"], ["a/long/name/of/a/score", "0.75 [0.7, 0.8]"]]
    assert lines(columns, {"": rows}, 40)[1] == [
        "  loss                    0.5 [0.4, 0.6]", "  a/long/name/of/a/score 0.75 [0.7, 0.8]",
    ]  # fmt: skip
    broken = ["  loss    0.5 [0.4, 0.6]", "  a/     0.75 [0.7, 0.8]", "  long/", "  name/", "  of/a/", "  score"]
    assert lines(columns, {"": rows}, 24)[1] == broken
    assert lines(columns, {"": rows[:1]}, 12)[1] == ["  loss         0.5", "        [0.4, 0.6]"]


@pytest.mark.parametrize("width", [80, 100])
def test_the_listing_goes_on_below_itself(width: int) -> None:
    wide, narrow = listing.listing(), listing.listing(width)
    assert max(map(len, narrow.splitlines())) <= width < max(map(len, wide.splitlines()))
    assert Counter(re.sub(r"\s", "", wide)) == Counter(re.sub(r"\s", "", narrow))


def test_files_are_never_broken_and_windows_have_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert window.open_console().width == window.UNSEEN
    assert window.columns_of_window() is None
    monkeypatch.setattr(Console, "is_terminal", True)
    for columns, wide in ((40, 80), (80, 80), (131, 131)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert window.open_console().width == wide


@pytest.mark.parametrize("words", ["--list", "--paper list"])
def test_in_a_real_terminal(words: str) -> None:
    """Of 80 columns: the command asks the terminal itself."""
    code, said = in_terminal(words.split(), 80)
    assert code == 0
    shown = said.replace("\r\n", "\n").splitlines()
    assert len(shown) > 30
    assert max(map(len, shown)) <= 80
