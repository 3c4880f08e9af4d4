"""The benchmark of growth: every part runs at small sizes, and a slope is that of logarithms."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import growth


@pytest.mark.parametrize("name", growth.PARTS)
def test_every_part_runs_at_small_sizes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made: list[str] = []

    def here(part: str, size: int) -> dict[str, tuple[float, int]]:
        folder = tmp_path / str(size)
        folder.mkdir()
        for row, work in growth.PARTS[part].make(size, folder):
            work()
            made.append(row)
        return dict.fromkeys(made, (float(size), 10 * size**2))

    monkeypatch.setattr(growth, "in_fresh_process", here)
    growth.main([name, "--small"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    small = growth.PARTS[name].small
    assert len(lines) == len(made) == len(small) * len(set(made))
    for first, second in zip(lines[::2], lines[1::2], strict=True):
        assert first[-3:] == [f"{small[0]}", f"{small[0]:.2f}", "0"]
        assert second[-5:] == [f"{small[1]}", f"{small[1]:.2f}", "1.00", "0", "2.00"]


@pytest.mark.slow  # in a process of its own; quick: what that is asked, here
def test_a_fresh_process_measures_what_is_asked() -> None:
    check_measured(growth.in_fresh_process("files", 3))


def test_a_part_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def here(command: list[str], **more: object) -> SimpleNamespace:
        assert command[1:3] == ["-m", growth.__name__]
        growth.main(command[3:])
        return SimpleNamespace(stdout=f"said by the way\n{capsys.readouterr().out}")

    monkeypatch.setattr("subprocess.run", here)
    check_measured(growth.in_fresh_process("files", 3))
    assert [growth.slope((20, 2.0, 0), (10, 1.0, 0), place) for place in (1, 2)] == ["1.00", "-"], "of nothing is none"


def check_measured(found: dict[str, tuple[float, int]]) -> None:
    assert list(found) == ["written", "read"]
    assert all(seconds > 0 for seconds, _ in found.values())
