"""What constraints.txt pins is what pyproject.toml asks for, and the version stands in one place."""

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedaudit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


@pytest.mark.parametrize("asked", ASKED)
def test_every_dependency_is_pinned_to_a_version_that_it_allows(asked: str) -> None:
    requirement = Requirement(asked)
    assert requirement.specifier.contains(PINNED[canonicalize_name(requirement.name)])


def test_pins_have_canonical_names() -> None:
    assert list(PINNED) == list(map(canonicalize_name, PINNED))


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == fedaudit.__version__
    assert cited["license"] == PROJECT["license"]
