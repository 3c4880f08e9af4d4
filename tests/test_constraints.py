"""What constraints.txt pins is what pyproject.toml asks for, and the version stands in one place."""

import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fedaudit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [*PROJECT["dependencies"], *(r for extra in PROJECT["optional-dependencies"].values() for r in extra)]
PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)


def test_every_dependency_is_pinned_to_a_version_that_it_allows() -> None:
    assert list(PINNED) == list(map(canonicalize_name, PINNED)), "pins have canonical names"
    asked = map(Requirement, ASKED)
    assert [str(one) for one in asked if not one.specifier.contains(PINNED[canonicalize_name(one.name)])] == []


def test_the_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == fedaudit.__version__
    assert cited["license"] == PROJECT["license"]
