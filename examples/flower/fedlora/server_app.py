"""The server of the federation: FedAvg over the clients' adapters, and a recording of what it sent and received."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

from fedaudit_recorder import Recorder
from fedlora.fedaudit_flower import RecordingGrid
from fedlora.task import load_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    model = load_model(config["backbone"], config["rank"])
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=3)

    recorder = Recorder(config["recording"], method="fedavg", task="photos", backbone=config["backbone"])
    model.peft_config["default"].save_pretrained(config["recording"])  # alpha, and how it scales
    recording = RecordingGrid(grid, recorder)
    result = strategy.start(
        grid=recording,
        initial_arrays=ArrayRecord(get_peft_model_state_dict(model)),
        num_rounds=config["num-server-rounds"],
    )
    recording.close(result.arrays)
