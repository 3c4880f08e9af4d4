"""The module that the federation trains, as NVFlare sees it: its state is the adapters alone."""

import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from task import load_model


class Adapters(torch.nn.Module):
    def __init__(self, backbone, rank):
        super().__init__()
        self.model = load_model(backbone, rank)

    def state_dict(self, *args, **kwargs):
        return get_peft_model_state_dict(self.model)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        return set_peft_model_state_dict(
            self.model, {name: torch.as_tensor(value) for name, value in state_dict.items()}
        )
