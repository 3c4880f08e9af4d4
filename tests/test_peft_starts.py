"""Adapters that peft itself initialised and trained on the built-in model: what an audit asks is the trained model, or the adapter is refused with what to do."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fedaudit.backbones import EMBEDDED, vlm
from fedaudit.external import single
from fedaudit.external.reading import read
from fedaudit.external.run import OwnRun
from fedaudit.machinery.errors import InputError
from fedaudit.machinery.store import claim
from fedaudit.tasks import captions
from fedaudit.trainers.lora import Learner, Settings
from tests.small_run import PROMPT, edit, line, put, small_run

LANGUAGE = r".*language_model.*\.(q_proj|down_proj)"
RANKS = {"r": 4, "lora_alpha": 6, "target_modules": LANGUAGE}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Four records and how the built-in model reads them."""
    params = captions.Params(records=2, reference=2, novel=2, test=1)
    drawn = [*captions.captions(params, clients=2, seed=0).records.values()][:4]
    return drawn, vlm.load(EMBEDDED).encode(drawn, claim(tmp_path_factory.mktemp("cache")), say=print)


class Training:
    """A peft model of the built-in one, trained for a few steps."""

    def __init__(self, records: tuple[Any, Any], **settings: Any) -> None:
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

        self.drawn, self.encoded = records
        frozen = vlm.load(EMBEDDED)
        self.processor, base = frozen.processor, frozen.model
        torch.manual_seed(0)
        prepare = settings.pop("prepare", lambda *_: None)
        config = LoraConfig(**RANKS | settings)
        prepare(base, config, self)
        self.model = get_peft_model(base, config)
        self.first = self.state(get_peft_model_state_dict)
        trained = [p for n, p in self.model.named_parameters() if "lora_" in n and p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            sum(self.loss(self.model, record) for record in self.drawn[:2]).backward()
            optimizer.step()
        self.last = self.state(get_peft_model_state_dict)

    def state(self, of: Callable[[Any], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in of(self.model).items()}

    def loss(self, model: Any, record: Any) -> torch.Tensor:
        encoded = self.encoded[record.id]
        from PIL import Image

        pixels = self.processor(images=[[Image.fromarray(record.image)]], text=["<image>"], return_tensors="pt")[
            "pixel_values"
        ]
        logits = model(
            input_ids=encoded.ids[None], pixel_values=pixels, attention_mask=torch.ones_like(encoded.ids)[None]
        ).logits[0]
        return F.cross_entropy(logits[encoded.prompt - 1 : -1], encoded.ids[encoded.prompt :])

    @torch.no_grad()
    def losses(self) -> list[float]:
        self.model.eval()
        return [self.loss(self.model, record).item() for record in self.drawn]


def in_audit(own: OwnRun, records: tuple[Any, Any], model: int = -1) -> list[float]:
    """The losses of a run's global model as an audit asks it."""
    frozen = vlm.load(EMBEDDED)
    frozen.require_language(own.trained.places)
    learner = Learner(frozen, records[1], Settings(**own.trained.settings))
    return learner.losses(own.models[model].load(), [record.id for record in records[0]])


def recorded(folder: Path, training: Training) -> Path:
    run = small_run(folder / "run")
    for path in [*run.rglob("*.safetensors")]:
        path.unlink()
    (run / "uploads/round-001").rmdir()
    for name, state in (
        ("models/round-000", training.first),
        ("models/round-001", training.last),
        ("uploads/round-000/client-00", training.last),
    ):
        put(run / f"{name}.safetensors", state)
    edit("run.json", alpha=None)(run)
    training.model.save_pretrained(folder / "saved")
    (run / "adapter_config.json").write_text((folder / "saved/adapter_config.json").read_text())
    return run


def alone(folder: Path, training: Training) -> OwnRun:
    training.model.save_pretrained(folder / "adapter")
    run = small_run(folder / "lists")
    put(run / "members.jsonl", [line("m0", prompt=PROMPT)])
    put(run / "nonmembers.jsonl", [line("o0", prompt=PROMPT)])
    lists = single.Flags(True, str(run / "members.jsonl"), str(run / "nonmembers.jsonl"))
    return single.read_adapter_run(folder / "adapter", lists)


def gradients(base: Any, config: Any, training: Training) -> None:
    from peft.tuners.lora.loraga import preprocess_loraga

    preprocess_loraga(
        base, config, train_step=lambda: sum(training.loss(base, r) for r in training.drawn[:2]).backward()
    )


def covariances(base: Any, config: Any, training: Training) -> None:
    from peft.tuners.lora.corda import preprocess_corda

    with torch.no_grad():
        preprocess_corda(base, config, run_model=lambda: [training.loss(base, record) for record in training.drawn])


def lora_ga(**more: Any) -> dict[str, Any]:
    from peft.tuners.lora.config import LoraGAConfig

    return {"init_lora_weights": "lora_ga", "lora_ga_config": LoraGAConfig(**more), "prepare": gradients}


def corda() -> dict[str, Any]:
    from peft.tuners.lora.config import CordaConfig

    return {"init_lora_weights": "corda", "corda_config": CordaConfig(corda_method="kpm"), "prepare": covariances}


ORDINARY: dict[str, Callable[[], dict[str, Any]]] = {
    "default": dict,
    "random": lambda: {"init_lora_weights": False},
    "gaussian": lambda: {"init_lora_weights": "gaussian", "use_rslora": True},
    "orthogonal": lambda: {"init_lora_weights": "orthogonal"},
    "mica": lambda: {"init_lora_weights": "mica"},
    "some layers": lambda: {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1, 3], "layers_pattern": "layers", "exclude_modules": r".*vision.*"},
    "one layer": lambda: {"target_modules": r"model\.language_model\.layers\.2\..*q_proj"},
    "excluded": lambda: {"target_modules": ["q_proj", "out_proj", "up_proj"], "exclude_modules": r".*(vision_tower|layers\.0\.).*"},
    "ranks": lambda: {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 11}},
}  # fmt: skip
OF_BACKBONE: dict[str, Callable[[], dict[str, Any]]] = {
    "pissa": lambda: {"init_lora_weights": "pissa"},
    "pissa_niter_4": lambda: {
        "init_lora_weights": "pissa_niter_4",
        "rank_pattern": {"down_proj": 2},
        "use_rslora": True,
    },
    "olora": lambda: {"init_lora_weights": "olora"},
    "OLoRA": lambda: {"init_lora_weights": "OLoRA"},
    "corda": corda,
    "lora_ga": lambda: lora_ga(direction="ArBr", scale="weight_svd"),
    "lora_ga, stable": lambda: lora_ga(direction="A2rBr", scale="stable"),
}


@pytest.mark.parametrize("start", ORDINARY | OF_BACKBONE)
def test_a_recorded_run_is_asked_as_it_was_trained(start: str, records: tuple[Any, Any], tmp_path: Path) -> None:
    training = Training(records, **(ORDINARY | OF_BACKBONE)[start]())
    own = read(recorded(tmp_path, training))
    truth = training.losses()
    assert in_audit(own, records) == pytest.approx(truth, abs=1e-4)
    said = {remark.check: remark.sentence for remark in own.remarks}
    assert ("less what the first adapter does" in said.get("adapter", "")) == (start in OF_BACKBONE)
    assert ("started from random numbers" in said.get("adapter", "")) == (start == "random")
    assert ("start" in said) == (start == "random")  # all others do nothing at first
    if start in OF_BACKBONE:
        plain = in_audit(read(recorded(tmp_path / "plain", Training(records))), records, 0)
        assert in_audit(own, records, 0) == pytest.approx(plain, abs=1e-3)  # the untrained model is the backbone
        with_wrong_base = copy.copy(json.loads((tmp_path / "run/adapter_config.json").read_text())) | {
            "init_lora_weights": True
        }
        (tmp_path / "run/adapter_config.json").write_text(json.dumps(with_wrong_base))
        assert max(abs(a - b) for a, b in zip(in_audit(read(tmp_path / "run"), records), truth, strict=True)) > 2e-4


@pytest.mark.parametrize("start", ["random", "gaussian", "one layer", "ranks"])
def test_an_adapter_alone_is_asked_as_it_was_trained(start: str, records: tuple[Any, Any], tmp_path: Path) -> None:
    training = Training(records, **ORDINARY[start]())
    assert in_audit(alone(tmp_path, training), records) == pytest.approx(training.losses(), abs=1e-4)


def test_an_adapter_alone_whose_backbone_was_changed_is_refused_with_what_to_do(
    records: tuple[Any, Any], tmp_path: Path
) -> None:
    training = Training(records, init_lora_weights="pissa")
    with pytest.raises(InputError, match="save it with path_initial_model_for_weight_conversion"):
        alone(tmp_path / "a", training)
    from peft import LoraConfig, get_peft_model

    first = get_peft_model(vlm.load(EMBEDDED).model, LoraConfig(**RANKS, init_lora_weights="pissa"))
    first.peft_config["default"].init_lora_weights = True  # as peft asks for
    first.save_pretrained(tmp_path / "first")
    saved = training.model
    saved.save_pretrained(tmp_path / "b/adapter", path_initial_model_for_weight_conversion=str(tmp_path / "first"))
    run = small_run(tmp_path / "b/lists")
    put(run / "members.jsonl", [line("m0", prompt=PROMPT)])
    put(run / "nonmembers.jsonl", [line("o0", prompt=PROMPT)])
    flags = single.Flags(True, str(run / "members.jsonl"), str(run / "nonmembers.jsonl"))
    own = single.read_adapter_run(tmp_path / "b/adapter", flags)
    assert in_audit(own, records) == pytest.approx(training.losses(), abs=1e-4)


def test_a_run_that_does_not_tell_what_was_taken_out_is_refused(records: tuple[Any, Any], tmp_path: Path) -> None:
    run = recorded(tmp_path, Training(records, init_lora_weights="olora"))
    for change, message in (
        ({"init_lora_weights": "loftq"}, "init_lora_weights loftq may change the backbone's own weights"),
        ({"init_lora_weights": "of 2031"}, "init_lora_weights of 2031 may change"),
        ({"layers_to_transform": [0, 1]}, r"adapters of the layers \[0, 1, 2, 3, 4, 5\], and .* says \[0, 1\]"),
        ({"layers_to_transform": "all"}, "layers_to_transform must be numbers of layers, not all"),
    ):
        path = run / "adapter_config.json"
        before = path.read_text()
        path.write_text(json.dumps(json.loads(before) | change))
        with pytest.raises(InputError, match=message):
            read(run)
        path.write_text(before)
    (run / "models/round-000.safetensors").rename(run / "models/round-002.safetensors")
    (run / "uploads/round-000").rename(run / "uploads/round-001")
    edit("run.json", gaps=True, format=2)(run)
    with pytest.raises(InputError, match="a run without its first model does not tell which it was"):
        read(run)


def test_what_is_not_known_is_said(records: tuple[Any, Any], tmp_path: Path) -> None:
    run = recorded(tmp_path, Training(records))
    path = run / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of_2031": 3, "off": False, "also_off": None}))
    (said,) = [remark.sentence for remark in read(run).remarks if remark.check == "adapter"]
    assert "adapter_config.json has settings that FedAudit does not know (of_2031 = 3): if they change" in said


PLACES = {  # where a layer lies, by its name in the model that was trained
    "layers.0.self_attn.q_proj": True,
    "model.layers.0.self_attn.q_proj": True,
    "language_model.layers.0.self_attn.q_proj": True,
    "model.language_model.layers.0.self_attn.q_proj": True,
    "language_model.model.layers.0.self_attn.q_proj": True,  # of transformers before version 5
    "model.vision_tower.encoder.layers.0.self_attn.q_proj": False,
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj": False,
    "model.audio_tower.layers.0.self_attn.q_proj": False,
    "eyes.layers.0.self_attn.q_proj": False,
    "model.multi_modal_projector.layers.0.linear_1": False,
}


@pytest.mark.parametrize("place", PLACES)
def test_only_layers_of_the_language_model_are_taken_for_its_own(place: str) -> None:
    model = vlm.load(EMBEDDED, "meta")
    if PLACES[place]:
        model.require_language([place])
        return
    with pytest.raises(InputError, match=f"{place} is no layer of the language model \\(model.language_model\\)"):
        model.require_language([place])


@pytest.mark.parametrize("wrapped", [
    "_orig_mod.base_model.model.{}", "base_model.model._orig_mod.{}", "module.base_model.model.{}",
    "_fsdp_wrapped_module._module.base_model.model.module.{}",
])  # fmt: skip
def test_names_of_wrapped_modules_are_those_without(wrapped: str, records: tuple[Any, Any], tmp_path: Path) -> None:
    training = Training(records)
    expected = read(recorded(tmp_path / "a", training))

    def renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        inner = {name.removeprefix("base_model.model."): tensor for name, tensor in state.items()}
        return {
            wrapped.format(name.replace(".self_attn", "._checkpoint_wrapped_module.self_attn")): t
            for name, t in inner.items()
        }

    training.first, training.last = renamed(training.first), renamed(training.last)
    found = read(recorded(tmp_path / "b", training))
    assert found.trained.places == expected.trained.places
    assert {n: t.tolist() for n, t in found.models[1].load().items()} == {
        n: t.tolist() for n, t in expected.models[1].load().items()
    }
