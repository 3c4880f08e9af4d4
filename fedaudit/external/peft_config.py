"""Reads peft's `adapter_config.json`, which says how adapters enter a model: used where an adapter remains a low-rank
matrix in each layer, refused by name elsewhere. Needs no peft."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaudit.external.files import OwnFiles
from fedaudit.external.schema import one_line, parse
from fedaudit.machinery.errors import InputError

NAME = "adapter_config.json"
_PLAIN = re.compile(r"\^?[\w.]+", re.ASCII)  # keys of patterns; others could match for ever
_TRAINED_MORE = "trains more than the two factors of a layer, which attacks do not ask"
_BASE_CHANGED = "changes the backbone's own weights, so that the model without adapter is not the backbone"
_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")  # initialisations that leave the backbone alone
# initialisations that take what the first adapter does out of the backbone
_OF_BACKBONE = re.compile(r"pissa(_niter_\d+)?|olora|corda|lora_ga", re.ASCII)

# values that leave an adapter what it is; any other is refused with the reason
_NEEDED: Mapping[str, tuple[Collection[Any], str]] = {
    "peft_type": (("LORA",), "is another kind of adapter"),
    "use_dora": ((False, None), "scales each layer's whole weight"),
    "modules_to_save": ((None, ()), _TRAINED_MORE),
    "bias": (("none", None), _TRAINED_MORE),
    "lora_bias": ((False, None), _TRAINED_MORE),
    "trainable_token_indices": ((None, ()), _TRAINED_MORE),
    "target_parameters": ((None, ()), "adapts parameters that are no linear layer"),
    "layer_replication": ((None, ()), _BASE_CHANGED),
    "use_qalora": ((False, None), "pools what enters a layer"),
    "use_bdlora": ((False, None), "has block-diagonal factors"),
    "alora_invocation_tokens": ((None, ()), "acts from certain tokens on only"),
    "arrow_config": ((None,), "mixes several adapters"),
    "kasa_config": ((None,), _BASE_CHANGED),
    "velora_config": ((None,), "changes how layers are trained and run"),
    "monteclora_config": ((None,), "draws adapters at random"),
}
_KNOWN = {  # that change nothing here, or are read
    *_NEEDED, "init_lora_weights", "r", "lora_alpha", "alpha_pattern", "rank_pattern", "use_rslora", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout", "fan_in_fan_out", "task_type",
    "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
    "ensure_weight_tying",
}  # fmt: skip


@dataclass(frozen=True)
class PeftConfig:
    """How adapters enter a model. A layer's update is `scale(layer, rank)` times B A."""

    path: Path
    alpha: float
    rank: int
    root: bool  # whether ranks enter by their square root (rsLoRA)
    alphas: Mapping[str, float]  # by the end of a layer's name
    ranks: Mapping[str, int]
    base: str  # the model that was adapted, as peft names it; "" if it does not
    targets: tuple[str, ...]  # last components of the adapted layers' names; () if a pattern says it
    start: object = True  # init_lora_weights
    numbers: frozenset[int] | None = None  # of the layers that are adapted; None: not stated
    partial: bool = False  # whether it may leave out some layers that have a target's name
    unknown: tuple[str, ...] = ()  # "key = value" of what is not known here

    @property
    def of_backbone(self) -> bool:
        """Whether what the first adapter does was taken out of the backbone's weights before training."""
        return isinstance(self.start, str) and bool(_OF_BACKBONE.fullmatch(self.start.lower()))

    def layer_rank(self, layer: str) -> int:
        return self.ranks.get(_key(self.ranks, layer), self.rank)

    def scale(self, layer: str) -> float:
        """The factor of B A in a layer."""
        alpha, rank = self.alphas.get(_key(self.alphas, layer), self.alpha), self.layer_rank(layer)
        return alpha / (math.sqrt(rank) if self.root else rank)


def read_peft_config(files: OwnFiles, folders: Collection[Path]) -> PeftConfig | None:
    """The configuration that lies in the first of `folders` that has one; None if there is none. InputError: it is
    malformed, or names what makes the adapter more than two factors a layer."""
    path = next((folder / NAME for folder in folders if os.path.lexists(folder / NAME)), None)
    if path is None:
        return None
    about = parse(files.read(path), str(path))
    if not isinstance(about, dict):
        raise InputError(f"{path} must be an object, as peft writes it")
    for key, (plain, reason) in _NEEDED.items():
        value = about.get(key)
        if (tuple(value) if isinstance(value, list) else value) not in plain and key in about:
            raise InputError(f"{path}: {key} {one_line(str(value))} {reason}; FedAudit cannot audit such an adapter")
    start = about.get("init_lora_weights", True)
    if start not in _STARTS and not (isinstance(start, str) and _OF_BACKBONE.fullmatch(start.lower())):
        raise InputError(
            f"{path}: init_lora_weights {one_line(str(start))} may change the backbone's own weights, as loftq does; "
            "save the changed backbone as a model, name it by --backbone, and write init_lora_weights true"
        )
    targets, chosen = about.get("target_modules"), about.get("layers_to_transform")
    numbers = [chosen] if isinstance(chosen, int) else chosen
    if numbers is not None and not (isinstance(numbers, list) and all(type(n) is int for n in numbers)):
        raise InputError(f"{path}: layers_to_transform must be numbers of layers, not {one_line(str(chosen))}")
    return PeftConfig(
        path=path,
        alpha=_number(path, "lora_alpha", about.get("lora_alpha", 8)),
        rank=int(_number(path, "r", about.get("r", 8))),
        root=about.get("use_rslora") is True,
        alphas=_pattern(path, "alpha_pattern", about),
        ranks={key: int(rank) for key, rank in _pattern(path, "rank_pattern", about).items()},
        base=str(about.get("base_model_name_or_path") or ""),
        targets=tuple(t.rpartition(".")[2] for t in targets if isinstance(t, str)) if isinstance(targets, list) else (),
        start=start,
        numbers=None if numbers is None else frozenset(numbers),
        partial=numbers is not None or bool(about.get("exclude_modules")) or _is_pattern(targets),
        unknown=tuple(
            one_line(f"{key} = {value}") for key, value in about.items() if key not in _KNOWN and not _is_off(value)
        ),
    )


def _is_pattern(targets: object) -> bool:
    """Whether target_modules says which layers are meant, not only the ends of their names."""
    return isinstance(targets, str) or (isinstance(targets, list) and any("." in str(target) for target in targets))


def _is_off(value: object) -> bool:
    """Whether a value of a configuration asks for nothing."""
    return value is None or value is False or value in ("", "none", [], {})


def _pattern(path: Path, name: str, about: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by the end of a layer's name. InputError: a key is a pattern that is no plain name."""
    numbers = about.get(name) or {}
    if not isinstance(numbers, dict):
        raise InputError(f"{path}: {name} must be an object of numbers by layer")
    for key in numbers:
        if not _PLAIN.fullmatch(key):
            raise InputError(f"{path}: {name} has the key {one_line(key)}; valid are names of layers or their ends")
    return {key: _number(path, f"{name}, {one_line(key)}", value) for key, value in numbers.items()}


def _number(path: Path, name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e6:
        raise InputError(f"{path}: {name} must be a number above 0, at most 1000000, not {one_line(str(value))}")
    return float(value)


def _key(keys: Collection[str], layer: str) -> str:
    """The first of `keys` that names a layer, the end of its name (as peft matches them), or its name in a whole model;
    "" if none does."""
    return next((k for k in keys if re.match(rf"(.*\.)?({k})$", layer) or k.endswith(f".{layer}")), "")
