"""The keywords of `fedaudit.audit` and `fedaudit.dry_run`, for type checkers and editors. Which of them go together
depends on method, attack and task.

Written by `python -m fedaudit.command.option_types` from the command's flags: do not edit it. Parameters of plugins
from elsewhere are not here; give them as a dictionary, `fedaudit.audit(method="mine", **{"my_rate": 0.1})`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TypedDict

Texts = str | Sequence[str]
Numbers = float | str | Sequence[float | str]  # "none" and math.inf: no limit
Wholes = int | str | Sequence[int]
Place = str | PathLike[str]
Places = Place | Sequence[Place]


class Options(TypedDict, total=False):
    """The command's flags with underscores; None is as good as not given."""

    absent: int | None
    accept_doubts: str | None
    alpha: float | None
    attack: Texts | None
    audit: Texts | None
    backbone: Place | None
    backbone_code: Place | None
    background: int | None
    batch: int | None
    beta: float | None
    canaries: int | None
    canary_kind: str | None
    class_contexts: bool | None
    classes: Place | None
    clients: int | None
    clip: str | None
    clip_norm: float | None
    clustered: str | None
    colluders: int | None
    compat: str | None
    components: int | None
    confidence: float | None
    config: Place | None
    data_root: Place | None
    dataset: str | None
    delta: float | None
    depth: int | None
    device: str | None
    directions: int | None
    dirichlet: float | None
    domain: str | None
    dtype: str | None
    engine: str | None
    envelope: float | None
    epsilon: Numbers | None
    evaluate_every: int | None
    export_adapters: Place | None
    export_run: Place | None
    fail_if: Texts | None
    form: str | None
    gamma: float | None
    global_rate: float | None
    growth_check: float | None
    hidden: int | None
    holdout: float | None
    images_root: Place | None
    inner: int | None
    k: int | None
    keep_rounds: str | None
    last: int | None
    learning_rate: float | None
    lie: int | None
    linked_files: bool | None
    local_epochs: int | None
    local_rate: float | None
    local_steps: int | None
    masks: bool | None
    match: str | None
    matmul_precision: str | None
    members: Place | None
    memory: int | str | None
    merge_below: int | None
    method: Texts | None
    mixing: float | None
    momentum: float | None
    mu: float | None
    neighbours: int | None
    newcomers: int | None
    nocaps_domain: str | None
    nocaps_root: Place | None
    nonmembers: Place | None
    normalise: bool | None
    novel: int | None
    novel_rows: str | None
    observed_rounds: int | None
    offline_a: float | None
    optimizer: str | None
    order: float | None
    out: Place | None
    partition: str | None
    past: bool | None
    per_round: int | None
    plugins: Places | None
    precision: float | None
    preset: str | None
    probe_round: int | None
    probe_scale: float | None
    prompt: str | None
    prompt_length: int | None
    quiet: bool | None
    rank: int | Wholes | None
    rate: float | None
    reach: float | None
    records: int | None
    reduction: str | None
    reference: int | None
    reference_share: float | None
    residual: bool | None
    rho: float | None
    rounds: int | None
    run: Place | None
    sampler: str | None
    score: str | None
    seed: int | None
    seeds: int | None
    shadow_kind: str | None
    shadow_trajectories: int | None
    shadows: int | None
    shared_layers: int | None
    shots: int | None
    show_records: bool | None
    sigma: str | None
    slice: str | None
    solved_rounds: int | None
    split_above: int | None
    steps: int | None
    target_modules: str | None
    targets: int | None
    task: str | None
    temperature: float | None
    test: int | None
    threads: int | None
    together: int | None
    tokens: int | None
    train: int | None
    trajectory: str | None
    twin: bool | None
    utility: str | None
    validation: float | None
    vanish: int | None
    variance: str | None
    ways: str | None
    weight_decay: float | None
    weights: Place | None
    worker_cpus: float | None
    worker_gpus: float | None
    wrong: int | None
