"""Runs the federation in NVFlare's simulator, and records it: `python job.py BACKBONE PHOTOS RECORDING`."""

import os
import sys

from adapters import Adapters
from fedaudit_nvflare import RecordReceived, RecordSent
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

RANK = 8

backbone, photos, folder = (os.path.abspath(path) for path in sys.argv[1:])
recipe = FedAvgRecipe(
    name="fedlora",
    model={"class_path": "adapters.Adapters", "args": {"backbone": backbone, "rank": RANK}},
    min_clients=3,
    num_rounds=3,
    train_script="client.py",
    train_args=f"--backbone {backbone} --photos {photos} --rank {RANK}",
)
recording = {"folder": folder, "about": {"method": "fedavg", "task": "photos", "backbone": backbone}}
recipe.add_server_output_filter(RecordSent(**recording), tasks=["train"])
recipe.add_server_input_filter(RecordReceived(**recording), tasks=["train"])
Adapters(backbone, RANK).model.peft_config["default"].save_pretrained(folder)  # alpha, and how it scales
recipe.execute(SimEnv(num_clients=3))
