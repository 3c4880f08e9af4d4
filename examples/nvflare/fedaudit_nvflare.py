"""Records what an NVFlare server sends and receives, for an audit. One file: copy it beside your job.

    recording = {"folder": "/data/my-run", "about": {"method": "fedavg", "task": "photos", "backbone": "/models/llava"}}
    recipe.add_server_output_filter(RecordSent(**recording), tasks=["train"])
    recipe.add_server_input_filter(RecordReceived(**recording), tasks=["train"])

Filters run in the order in which they are added. One that clips or noises what the server received comes after these.
"""

import os
import threading

import torch
from nvflare.apis.dxo import DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from fedaudit_recorder import Recorder


class Recording(Filter):
    """A filter that changes nothing.

    folder: an absolute path on the server; a relative one would lie in the job's workspace
    about: the keyword arguments of the Recorder
    """

    def __init__(self, folder, about):
        super().__init__()
        if not os.path.isabs(folder):
            raise ValueError(f"folder must be an absolute path, not {folder!r}")
        self.folder, self.about = folder, about
        self._recorder = None

    @property
    def recorder(self):
        """Opened on the server: the job is put together elsewhere."""
        self._recorder = self._recorder or Recorder(self.folder, **self.about)
        return self._recorder


class RecordSent(Recording):
    """Records the model that is sent out in a round, and after the run the last one."""

    def __init__(self, folder, about):
        super().__init__(folder, about)
        self._lock = threading.Lock()  # clients ask for their tasks at the same time
        self._round, self._sent, self._last = None, None, None

    def process(self, shareable, fl_ctx):
        r, state = shareable.get_header(AppConstants.CURRENT_ROUND), tensors(from_shareable(shareable))
        with self._lock:
            if r != self._round:
                self.recorder.broadcast(r, state)
                self._round, self._sent = r, state
        if any(not torch.equal(state[name], self._sent[name]) for name in state):
            raise ValueError(f"round {r}: clients are sent different models; a recording holds one")
        return shareable

    def handle_event(self, event_type, fl_ctx):
        if event_type == AppEventType.BEFORE_LEARNABLE_PERSIST:
            weights = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)["weights"]
            self._last = as_tensors(weights)
        elif event_type == EventType.END_RUN and self._last is not None:
            self.recorder.close(self._last)


class RecordReceived(Recording):
    """Records what a client's message holds, under the client's name, before the server changes anything."""

    def process(self, shareable, fl_ctx):
        client = fl_ctx.get_peer_context().get_identity_name()
        r = shareable.get_header(AppConstants.CURRENT_ROUND, shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND))
        if shareable.get_return_code() != ReturnCode.OK:
            self.recorder.failed(r, client)
            return shareable
        dxo = from_shareable(shareable)
        changes = dxo.data_kind == DataKind.WEIGHT_DIFF
        if changes != (self.about.get("uploads") == "changes"):
            raise ValueError(
                f"clients send {dxo.data_kind}; {DataKind.WEIGHT_DIFF}, and no other, needs uploads='changes'"
            )
        self.recorder.upload(r, client, tensors(dxo), records=dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND))
        return shareable


def tensors(dxo):
    """The tensors of a message. ValueError: it holds something else."""
    if dxo.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        raise ValueError(f"a message holds {dxo.data_kind}, where a recording holds weights")
    return as_tensors(dxo.data)


def as_tensors(weights):
    """Copies, by name: what is done to `weights` later does not change them."""
    return {name: torch.as_tensor(value).detach().cpu().clone() for name, value in weights.items()}
