"""peft's adapter_config.json: an adapter is read as peft applies it, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaudit.external.reading import read
from fedaudit.external.run import OwnRun
from fedaudit.machinery.errors import InputError
from tests.small_run import edit, put, small_run

LAYERS = 3


def adapted(**settings: Any) -> Any:
    """A peft model of small linear layers with random factors."""
    from peft import LoraConfig, get_peft_model

    model = torch.nn.Module()
    modules = [torch.nn.ModuleDict({n: torch.nn.Linear(8, 8) for n in ("q_proj", "v_proj")}) for _ in range(LAYERS)]
    model.layers = torch.nn.ModuleList(modules)
    torch.manual_seed(0)
    found = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], **settings))
    for name, parameter in found.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    return found


def recorded(folder: Path, model: Any) -> Path:
    """A run of one round whose models and upload are the adapter, with peft's own file beside them."""
    from peft import get_peft_model_state_dict

    run = small_run(folder / "run")
    for path in [*run.rglob("*.safetensors")]:
        path.unlink()
    (run / "uploads/round-001").rmdir()
    state = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(model).items()}
    for name in ("models/round-000", "models/round-001", "uploads/round-000/client-00"):
        put(run / f"{name}.safetensors", state)
    edit("run.json", alpha=None)(run)
    model.save_pretrained(folder / "saved")
    (run / "adapter_config.json").write_text((folder / "saved/adapter_config.json").read_text())
    return run


def updates(own: OwnRun) -> dict[str, torch.Tensor]:
    """alpha / rank * B A by layer."""
    state = own.models[1].load()
    layers = {name[:-2] for name in state}
    return {layer: own.trained.alpha / own.trained.rank * state[f"{layer}.B"] @ state[f"{layer}.A"] for layer in layers}


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 16},
        {"r": 4, "lora_alpha": 16, "use_rslora": True},
        {"r": 4, "lora_alpha": 6, "rank_pattern": {"v_proj": 2}},
        {"r": 4, "lora_alpha": 6, "alpha_pattern": {"layers.1.q_proj": 20}, "use_rslora": True},
        {"r": 2, "lora_alpha": 3, "rank_pattern": {"^layers.0.v_proj": 5}, "alpha_pattern": {"v_proj": 1}},
        {"r": 2, "lora_alpha": 3, "init_lora_weights": "gaussian", "fan_in_fan_out": False},
    ],
)
def test_an_update_is_that_of_peft(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = adapted(**settings)
    found = updates(read(recorded(tmp_path, model)))
    assert len(found) == 2 * LAYERS
    for layer, update in found.items():
        torch.testing.assert_close(update, model.get_submodule(f"base_model.model.{layer}").get_delta_weight("default"))


def test_the_numbers_of_peft_must_be_those_of_run_json(tmp_path: Path) -> None:
    run = recorded(tmp_path, adapted(r=4, lora_alpha=16, use_rslora=True))
    edit("run.json", alpha=32)(run)
    assert read(run).trained.alpha == 32
    edit("run.json", alpha=16)(run)
    with pytest.raises(
        InputError, match=r"run\.json: alpha is 16, and .*adapter_config\.json makes it 32 .*leave alpha out"
    ):
        read(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora True scales each layer's whole weight"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save .*lm_head.* trains more than"),
        ({"bias": "all"}, "bias all trains more"),
        ({"lora_bias": True}, "lora_bias True trains more"),
        ({"peft_type": "LOHA"}, "peft_type LOHA is another kind"),
        ({"target_modules": ["q_proj", "o_proj"]}, "holds no adapter of o_proj, which .*target_modules; it has q_proj, v_proj"),
        ({"r": 8}, r"layers\.0\.q_proj\.A has rank 4, where .*adapter_config\.json states 8"),
        ({"rank_pattern": {"(a+)+": 2}}, r"rank_pattern has the key \(a\+\)\+; valid are names of layers"),
        ({"alpha_pattern": [3]}, "alpha_pattern must be an object of numbers"),
        ({"lora_alpha": 0}, "lora_alpha must be a number above 0"),
        ({"r": True}, "r must be a number above 0"),
    ],
)  # fmt: skip
def test_what_is_more_than_two_factors_is_refused_by_name(tmp_path: Path, changes: Any, message: str) -> None:
    run = recorded(tmp_path, adapted(r=4, lora_alpha=16))
    path = run / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=message):
        read(run)


def test_the_file_may_lie_beside_the_models_but_alpha_must_be_stated_somewhere(tmp_path: Path) -> None:
    run = recorded(tmp_path, adapted(r=4, lora_alpha=16))
    before = read(run).sha256
    moved = (run / "adapter_config.json").rename(run / "models/adapter_config.json")
    assert (read(run).trained.alpha, read(run).trained.rank) == (16, 4)
    assert read(run).sha256 != before
    moved.unlink()
    with pytest.raises(InputError, match=r"run\.json lacks the key 'alpha', .*or add peft's adapter_config\.json"):
        read(run)
