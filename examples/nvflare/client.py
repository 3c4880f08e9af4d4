"""A client of the federation: it trains the adapters that it is sent on its own records."""

import argparse

import nvflare.client as flare
from adapters import Adapters
from task import load_records, train

parser = argparse.ArgumentParser()
parser.add_argument("--backbone")
parser.add_argument("--photos")
parser.add_argument("--rank", type=int)
given = parser.parse_args()

flare.init()
site = flare.get_site_name()
records = load_records(given.photos, site)
adapters = Adapters(given.backbone, given.rank)
while flare.is_running():
    received = flare.receive()
    adapters.load_state_dict(received.params)
    seed = 1000 * received.current_round + int(site.removeprefix("site-"))
    loss = train(adapters.model, given.backbone, given.photos, records, epochs=3, learning_rate=0.01, seed=seed)
    meta = {"NUM_STEPS_CURRENT_ROUND": len(records)}  # the weight of FedAvg
    flare.send(flare.FLModel(params=adapters.state_dict(), metrics={"loss": loss}, meta=meta))
