"""A parameter's bounds stand beside it: what is refused and how it is said, what --help shows, what another process gets."""

import argparse
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest

from fedaudit.command.flags import Parser, add_fields
from fedaudit.machinery.parameters import Parameters, choice, flag, like, number, text, whole


@dataclass(frozen=True)
class Cooking(Parameters):
    eggs: int = whole(2, "eggs in the pan", least=1, most=12)
    salt: float = number(0.5, "grams", above=0, below=3)
    heat: float = number(100.0, "degrees", least=20, most=300, infinite="inf", sweep=True)
    pan: str = choice("iron", "what of", ("", "iron", "steel", "tin"))
    cook: str = text("Ann", "who", form="[A-Z][a-z]+", said="a first name such as Ann")
    lid: bool = flag(True, "cover it")

    def check(self) -> None:
        if self.lid and self.heat == math.inf:
            raise ValueError("lid must be off where heat is infinite, not True")


@dataclass(frozen=True)
class Feast(Cooking):
    eggs: int = like(Cooking, "eggs", 12)
    salt: float = like(Cooking, "salt", 2.0, "grams for all")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"eggs": 0}, "eggs must be at least 1 and at most 12, not 0"),
        ({"eggs": 13}, "eggs must be at least 1 and at most 12, not 13"),
        ({"salt": 0.0}, "salt must be above 0 and below 3, not 0.0"),
        ({"salt": 3.0}, "salt must be above 0 and below 3, not 3.0"),
        ({"salt": math.nan}, "salt must be above 0 and below 3, not nan"),
        ({"salt": math.inf}, "salt must be above 0 and below 3, not inf"),
        ({"heat": 19.0}, "heat must be at least 20 and at most 300, or inf, not 19.0"),
        ({"heat": -math.inf}, "heat must be at least 20 and at most 300, or inf, not -inf"),
        ({"pan": "wood"}, "pan must be iron, steel or tin, not 'wood'"),
        ({"cook": "ann"}, "cook must be a first name such as Ann, not 'ann'"),
        ({"heat": math.inf}, "lid must be off where heat is infinite, not True"),
        ({"eggs": 0, "pan": "wood"}, "eggs must be at least 1 and at most 12, not 0"),  # the first
    ],
)
@pytest.mark.parametrize("cls", [Cooking, Feast])
def test_what_is_not_valid_is_refused_in_one_sentence(cls: type[Any], value: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        cls(**value)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "value", [{"eggs": 1}, {"eggs": 12}, {"heat": 20}, {"heat": math.inf, "lid": False}, {"pan": ""}, {"salt": 2.999}]
)
def test_what_is_valid_is_taken(value: dict[str, Any]) -> None:
    assert dataclasses.asdict(Cooking(**value)) == dataclasses.asdict(Cooking()) | value


def shown(cls: type[Any]) -> dict[str, str | None]:
    parser = Parser(add_help=False)
    add_fields(parser, "cooking", cls)
    return {action.dest: action.help for action in parser._actions if not isinstance(action, argparse._HelpAction)}


def test_help_shows_the_bounds_beside_each() -> None:
    assert shown(Cooking) == {
        "eggs": "eggs in the pan (1 to 12; default: 2)",
        "salt": "grams (above 0 to below 3; default: 0.5)",
        "heat": "degrees (20 to 300, or inf; default: 100.0)",
        "pan": "what of (iron, steel or tin; default: iron)",
        "cook": "who (default: Ann)",
        "lid": "cover it (default: True)",
    }


def test_a_parameter_like_another_keeps_its_bounds() -> None:
    assert shown(Feast)["eggs"] == "eggs in the pan (1 to 12; default: 12)"
    assert shown(Feast)["salt"] == "grams for all (above 0 to below 3; default: 2.0)"
    assert Feast.__dataclass_fields__["heat"].metadata["sweep"]
