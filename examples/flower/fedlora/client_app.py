"""A client of the federation: it trains the adapters that it is sent on its own records."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from fedlora.task import load_model, load_records, train

app = ClientApp()


@app.train()
def train_adapters(message: Message, context: Context) -> Message:
    config, client = context.run_config, int(context.node_config["partition-id"])
    model = load_model(config["backbone"], config["rank"])
    set_peft_model_state_dict(model, message.content["arrays"].to_torch_state_dict())
    records = load_records(config["photos"], client)
    seed = 1000 * message.content["config"]["server-round"] + client
    loss = train(
        model, config["backbone"], config["photos"], records, config["local-epochs"], config["learning-rate"], seed
    )
    metrics = MetricRecord({"loss": loss, "num-examples": len(records), "partition-id": client})
    arrays = ArrayRecord(get_peft_model_state_dict(model))
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
