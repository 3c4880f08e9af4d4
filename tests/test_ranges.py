"""Numbers that cannot be meant are refused at the door, field by field, in every dataclass of parameters; inside the ranges noise can be computed."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from fedaudit.attacks.facts import ATTACKS
from fedaudit.attacks.settings import Adversary
from fedaudit.audits.facts import AUDITS
from fedaudit.command import cli
from fedaudit.command.flags import presets
from fedaudit.machinery.errors import InputError
from fedaudit.privacy.accountant import _sampled_epsilon, gaussian_epsilon, noise_multiplier, nominal_std
from fedaudit.privacy.settings import AdapterPrivacy, Privacy
from fedaudit.tasks.facts import TASKS
from fedaudit.trainers import lora, maple, prompts
from fedaudit.trainers.learners import METHODS
from tests.test_cli import refuse

CLASSES = {f"{k.kind} {name}": p.params for k in (METHODS, ATTACKS, AUDITS) for name, p in k.items()}
CLASSES |= {f"task {name}": p.params for name, p in TASKS.items() if name in ("captions", "vqa", "glyphs")}
CLASSES |= {"lora": lora.Settings, "prompts": prompts.Settings, "maple": maple.Settings}
CLASSES |= {"privacy": Privacy, "privacy of adapters": AdapterPrivacy, "adversary": Adversary}
ABSURD = (math.nan, math.inf, -math.inf, 1e300, -1e300, 10**23, -(10**23))
MEANT = {("epsilon", math.inf), ("order", math.inf)}  # documented: none, and the Rényi order


@pytest.mark.parametrize("name", CLASSES)
def test_absurd_numbers_are_refused_by_name(name: str) -> None:
    cls = CLASSES[name]
    for field in (field for field in dataclasses.fields(cls) if type(field.default) in (int, float)):
        for value in ABSURD:
            if (field.name, value) in MEANT:
                assert getattr(cls(**{field.name: value}), field.name) == value
                continue
            with pytest.raises(ValueError, match=f"^{field.name} must .* not {value}".replace("+", r"\+")):
                cls(**{field.name: value})


@pytest.mark.parametrize(("method", "more"), [("dpfpl", ""), ("dpfedavg", "--no-twin"), ("promptfl", "--attack lira")])
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


SAMPLED = pytest.param(0.02, marks=pytest.mark.slow)  # distributions of losses; quick: what noise proves, below


@pytest.mark.parametrize("rate", [1.0, SAMPLED])
@pytest.mark.parametrize("epsilon", [1e-6, 1e6])
@pytest.mark.parametrize("delta", [1e-100, 1e-5, 0.5, 1 - 2**-53])
def test_noise_is_finite_in_the_corners(epsilon: float, delta: float, rate: float) -> None:
    """Within the ranges both ways to set the noise give a standard deviation that a float32 can hold."""
    ratio = noise_multiplier(1, epsilon=epsilon, delta=delta, times=2, rate=rate)
    for norm in (1e-6, 1e6):
        Privacy(epsilon=epsilon, delta=delta, clip_norm=norm)
        assert 1e-30 < ratio * norm < 1e30
        assert 1e-30 < nominal_std(sensitivity=norm, steps=10**6, epsilon=epsilon, delta=delta) < 1e30


@pytest.mark.parametrize("mu", [1e-9, 1.0, 1e3, 1e9])
def test_what_noise_proves_is_a_number_in_the_corners(mu: float) -> None:
    """A record that is sampled once in 50 times, in two steps: never more than without sampling, and nothing where delta allows for all of it."""
    for delta in (1e-100, 1e-5, 0.5):
        found = _sampled_epsilon(((mu, 2),), 0.02, delta)
        assert 0 <= found <= (1 + 1e-6) * gaussian_epsilon(math.sqrt(2) * mu, delta) < math.inf
    assert found == 0 or mu > 1e3


OUT_OF_RANGE = {  # behind these words
    "": "--k=110 --k=-1 --order=3 --slice=picture --compat=v2 --rho=2 --clients=0 --rounds=0 --per-round=0 --seeds=0 --seed=-1 "
    "--threads=0 --threads=-1 --rank=0 --rank=100000 --batch=0 --learning-rate=0 --learning-rate=inf --learning-rate=1e30 "
    "--weight-decay=-1 --target-modules=q-proj --local-epochs=-1 --records=0 --records=1000000 --novel=1000000 --dirichlet=0 "
    "--test=0 --test=1000000 --confidence=1",
    "--task vqa": "--reference=1000000",
    "--task coco": "--records=1 --background=-1 --reference=1 --test=0 --dirichlet=0 --nocaps-domain=far --novel=1",
    "--task scienceqa": "--records=1 --background=-1 --reference=1 --test=0 --dirichlet=0",
    "--task images": "--partition=iid --dirichlet=0 --shots=-1 --reference-share=0 --reference-share=1.0 --holdout=0.25",
    "--task images --partition dirichlet": "--shots=4",
    "--method fedper": "--shared-layers=0",
    "--method fedpara": "--form=sum",
    "--method dpfpl": "--epsilon=0 --epsilon=-0.1 --epsilon=1e308 --epsilon=1e-300 --epsilon=0.1,1e-9 --delta=0 --delta=1 --delta=5e-324 "
    "--rank=-1 --clip=sample --clip-norm=0 --sigma=exact --sampler=random --prompt-length=0 --batch=0 --local-rate=0 "
    "--memory=0 --partition=iid --canaries=-1",
    "--method dpfpl --canaries 4": "--canary-kind=odd",
    "--method promptfl": "--global-rate=1e38 --train=1000000 --test=1000000",
    "--method fedotp": "--match=mean",
    "--method fedpgp": "--mu=-1",
    "--method dpfpl --attack lira": "--variance=own --targets=-1 --shadows=3 --shadows=1000000 --shadow-kind=client --trajectory=real",
    "--method dpfpl --attack shadow,cosine,decompose": "--hidden=0 --observed-rounds=1 --solved-rounds=-1",
}


@pytest.mark.parametrize("before", OUT_OF_RANGE)
def test_a_value_out_of_its_range_is_refused_by_its_flag(
    before: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedaudit.pipeline.workers.Workshop.executor", None)  # an open door would train
    for word in OUT_OF_RANGE[before].split():
        sentence = refuse(capsys, [*before.split(), word, "--out", str(tmp_path / "out")])
        assert sentence.startswith(f"error: {word.partition('=')[0]}")
        assert " must " in sentence
        assert not (tmp_path / "out").exists()


def test_what_the_presets_ask_for_is_within_the_ranges() -> None:
    """Those of the papers get as far as the weights that are not here."""
    for preset in presets():
        try:
            cli.read_command(["--preset", preset, *([] if "dpfpl" not in preset else ["--method", "dpfpl"])])
        except InputError as error:
            assert "--weights" in str(error) or "--data-root" in str(error), error  # noqa: PT017
