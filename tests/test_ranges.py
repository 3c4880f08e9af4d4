"""Numbers that cannot be meant are refused at the door, field by field, in every dataclass of parameters; inside the ranges noise can be computed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from attacks.facts import ATTACKS
from attacks.settings import Adversary
from audits.facts import AUDITS
from fedaudit.command import cli
from fedaudit.command.flags import presets
from fedaudit.machinery.errors import InputError
from fedaudit.privacy.accountant import _gaussian_epsilon, _sampled_epsilon, noise_multiplier, nominal_std
from fedaudit.privacy.settings import AdapterPrivacy, Privacy
from fedaudit.tasks.facts import TASKS
from tests.test_cli import refuse
from trainers import lora, maple, prompts
from trainers.learners import METHODS

CLASSES = {f"{k.kind} {name}": p.params for k in (METHODS, ATTACKS, AUDITS) for name, p in k.items()}
CLASSES |= {f"task {name}": p.params for name, p in TASKS.items() if name in ("captions", "vqa", "glyphs")}
CLASSES |= {"lora": lora.Settings, "prompts": prompts.Settings, "maple": maple.Settings}
CLASSES |= {"privacy": Privacy, "privacy of adapters": AdapterPrivacy, "adversary": Adversary}
FIELDS = [
    pytest.param(cls, field, id=f"{name} {field.name}")
    for name, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
    if type(field.default) in (int, float)
]
ABSURD = (math.nan, math.inf, -math.inf, 1e300, -1e300, 10**23, -(10**23))
MEANT = {("epsilon", math.inf), ("order", math.inf)}  # documented: none, and the Rényi order


@pytest.mark.parametrize("value", ABSURD, ids=str)
@pytest.mark.parametrize(("cls", "field"), FIELDS)
def test_absurd_numbers_are_refused_by_name(cls: type[Any], field: dataclasses.Field[Any], value: float) -> None:
    if (field.name, value) in MEANT:
        assert getattr(cls(**{field.name: value}), field.name) == value
        return
    with pytest.raises(ValueError, match=f"^{field.name} must .* not {value}".replace("+", r"\+")):
        cls(**{field.name: value})


@pytest.mark.parametrize("method", ["dpfpl", "dpfedavg", "promptfl"])
@pytest.mark.parametrize("more", ["", "--no-twin", "--attack lira"])
def test_an_infinite_epsilon_is_the_word_none(method: str, more: str, tmp_path: Path) -> None:
    """By flag, in a label and in a file: the same one training, without a twin."""
    keys = []
    for word, in_file in (("inf", ".inf"), ("none", "none")):
        (file := tmp_path / "run.yaml").write_text(f"epsilon: {in_file}\n")
        for line in (f"{method} --epsilon {word}", f"{method}:epsilon={word}", f"{method} --config {file}"):
            cells = cli.read_command(f"--method {line} {more}".split()).plan.cells
            keys.append([cell.analysis_key for cell in cells])
    assert len(keys[0]) == 1
    assert all(one == keys[0] for one in keys)


@pytest.mark.parametrize("delta", [5e-324, 1e-310, 1e-101, 0.0, -1e-5, 1.0])
def test_a_delta_that_no_noise_can_be_computed_from_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=f"^delta must .* not {delta}".replace("+", r"\+")):
        Privacy(delta=delta)


CORNERS = [(epsilon, delta) for epsilon in (1e-6, 1e6) for delta in (1e-100, 1e-5, 0.5, 1 - 2**-53)]


@pytest.mark.parametrize("rate", [1.0, pytest.param(0.02, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("epsilon", "delta"), CORNERS)
def test_noise_is_finite_in_the_corners(epsilon: float, delta: float, rate: float) -> None:
    """Within the ranges both ways to set the noise give a standard deviation that a float32 can hold."""
    ratio = noise_multiplier(1, epsilon=epsilon, delta=delta, times=2, rate=rate)
    for norm in (1e-6, 1e6):
        Privacy(epsilon=epsilon, delta=delta, clip_norm=norm)
        assert 1e-30 < ratio * norm < 1e30
        assert 1e-30 < nominal_std(sensitivity=norm, steps=10**6, epsilon=epsilon, delta=delta) < 1e30


@pytest.mark.parametrize("mu", [1e-9, 1e-3, 1.0, 1e3, 1e9])
def test_what_noise_proves_is_a_number_in_the_corners(mu: float) -> None:
    """A record that is sampled once in 50 times, in two steps: never more than without sampling, and nothing where delta allows for all of it."""
    for delta in (1e-100, 1e-5, 0.5):
        found = _sampled_epsilon(((mu, 2),), 0.02, delta)
        assert 0 <= found <= (1 + 1e-6) * _gaussian_epsilon(math.sqrt(2) * mu, delta) < math.inf
    assert found == 0 or mu > 1e3


AT_THE_DOOR = {
    "--learning-rate 1e30": ["--learning-rate", "above 0 and at most 1000", "not 1e+30"],
    "--rank 100000": ["--rank", "at most 4096"],
    "--method promptfl --global-rate 1e38": ["--global-rate", "above 0 and at most 1000000", "not 1e+38"],
    "--method dpfpl --epsilon 1 --delta 5e-324": ["--delta", "at least 1e-100", "not 5e-324"],
    "--method dpfpl --epsilon 1e308": ["--epsilon", "at least 1e-06 and at most 1000000, or none", "not 1e+308"],
    "--method dpfpl --epsilon 1e-300": ["--epsilon", "at least 1e-06 and at most 1000000, or none", "not 1e-300"],
    "--method dpfpl --epsilon 0": ["--epsilon", "at least 1e-06 and at most 1000000, or none", "not 0.0"],
    "--method dpfpl --epsilon 1 --clip-norm inf": ["--clip-norm", "must be finite"],
    "--method dpfpl --epsilon inf --clip-norm inf": ["--clip-norm", "has no effect"],
    "--method dpfpl --epsilon 0.1,1e-9": ["--epsilon", "at least 1e-06 and at most 1000000, or none", "not 1e-09"],
    "--method dpfpl:clip_norm=1e300": ["clip_norm", "at least 1e-06 and at most 1000000000", "not 1e+300"],
    "--records 1000000": ["--records", "at least 2 and at most 10000", "not 1000000"],
    "--task vqa --reference 1000000": ["--reference", "at least 2 and at most 10000"],
    "--novel 1000000": ["--novel", "at least 2 and at most 100000"],
    "--test 1000000": ["--test", "at least 1 and at most 10000"],
    "--method promptfl --train 1000000": ["--train", "at least 1 and at most 10000", "not 1000000"],
    "--method promptfl --test 1000000": ["--test", "at least 1 and at most 10000"],
    "--method promptfl --shots 1000000": ["--shots 1000000", "has only 48 training records"],
    "--method promptfl --attack loss --canaries 1000000": ["--canaries 1000000", "valid here are 0 to"],
    "--method dpfpl --attack lira --shadows 1000000": ["--shadows", "at least 4 and at most 10000", "not 1000000"],
}


@pytest.mark.parametrize("words", AT_THE_DOOR)
def test_the_command_names_the_flag_and_writes_nothing(words: str, capsys: Any, tmp_path: Path) -> None:
    sentence = refuse(capsys, [*words.split(), "--out", str(tmp_path / "out")])
    assert all(word in sentence for word in AT_THE_DOOR[words]), sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("preset", presets())
def test_what_the_presets_ask_for_is_within_the_ranges(preset: str) -> None:
    """Those of the papers get as far as the weights that are not here."""
    try:
        cli.read_command(["--preset", preset, *([] if "dpfpl" not in preset else ["--method", "dpfpl"])])
    except InputError as error:
        assert "--weights" in str(error) or "--data-root" in str(error), error  # noqa: PT017
