"""DP2FL: dual prompts, one global by validation losses, one mixed per client from all clients' (Chang et al. 2025).

A client trains the task prompt Pt and its data prompt Pd (`trainers/maple.py`). The server mixes the task prompts, and
for new clients and new data the data prompts too, by the losses of all clients' models on all clients' validation
records (eqs. 4 and 5). Each client's data prompt is mixed from those of the clients that do well on its validation
records (eqs. 6 to 14). There is no noise, and validation records leave the clients: each client sends a part of its
records, on which it does not train, to the server and to all other clients, as images with their classes.

In the paper each client computes the losses and its own mixture. All clients are sent the same, so here the server
computes both once. A client computes the loss of its mixture on its own records (line 16) at its next turn.

Where the paper contradicts itself or is silent (tests/test_dp2fl.py has eq. 14 as printed, and its effect):
- eq. 14 makes gamma at most 0 and the weights unbounded. Here it divides by the largest |w| of the retained clients,
  whose weights are |gamma| |w|: no weight is negative, and none of theirs exceeds a third of the least positive one;
- eq. 5 for one client is 1; if all losses are 0, weights are equal;
- eq. 11 for a data prompt at distance 0 is 0;
- eq. 12 for a single retained client is beta; for retained clients that all weigh 0, beta in equal parts;
- without any positive or retained client, Pd_k is unchanged;
- eq. 10 for positive clients that are all at distance 0: Pd_k is unchanged;
- a client with a single record holds nothing back: its losses are 0, no client is positive or retained for it, and its
  Pd_k never changes;
- a client that is not in a round's cohort keeps its Pd_k; one that never was starts from the global model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedaudit.machinery.parameters import Parameters, number
from fedaudit.trainers.base import Arrival, Participation, Site, State, Update, Upload, generator
from fedaudit.trainers.learners import MethodFacts
from fedaudit.trainers.maple import DualCohort, DualMessages, DualMethod, Learner


class Facts(MethodFacts):
    learner = "maple"
    title = "DP²FL"
    newcomers = True


@dataclass(frozen=True)
class Params(Parameters):
    alpha: float = number(1.2, "largest loss, over one's own, at which a client is retained", least=1, most=10**6)
    beta: float = number(0.2, "weight of all retained clients together where nobody does better", least=0, most=1)
    validation: float = number(0.2, "part of a client's list that it shares to validate", above=0, most=0.9)


@dataclass(frozen=True)
class DP2FL(DualMethod):
    params: Params

    shared = ("Pt", "Pd", "validation records")
    by_client = ("personal", "trained")

    def divided(self, records: Sequence[str], client: int, seed: int) -> tuple[list[str], list[str]]:
        order = torch.randperm(len(records), generator=generator(seed, "client", client, "validation")).tolist()
        held_back = min(max(1, round(self.params.validation * len(records))), len(records) - 1)
        return [records[i] for i in sorted(order[held_back:])], [records[i] for i in sorted(order[:held_back])]

    def download(self, server: State, client: Participation) -> State:
        Pd = server["personal"][client.client] if client.earlier_rounds else server["Pd"]
        return {"Pt": server["Pt"], "Pd": Pd}

    def update(self, server: State, own: State, client: DualCohort) -> Update:
        Pt, Pd = server["Pt"], server["Pd"]  # PT, and the client's own Pd_k where `download` gave it that
        before = client.validation_losses(Pt, Pd)  # lines 3 and 16: loss_kk of the round before
        for step in client.steps():  # line 8
            in_Pt, in_Pd = step.gradients(Pt, Pd)
            Pt, Pd = step.descend(Pt, in_Pt), step.descend(Pd, in_Pd)
        return Update(
            upload={"Pt": Pt, "Pd": Pd, "loss": before},
            private={"number": torch.tensor([one.client + 1 for one in client.clients])},
            facts=client.validation_facts,
        )

    def aggregate(self, server: State, uploads: Sequence[Upload], site: Site) -> State:
        uploads = sorted(uploads, key=lambda upload: upload.client)
        trained = {name: torch.stack([u.state[name] for u in uploads]) for name in ("Pt", "Pd", "loss")}
        validation = [(u.facts["validation"], u.facts["held back"]) for u in uploads]
        loss = site.ask(partial(losses_of_all, trained, validation))["loss"]  # line 9
        w_t = global_weights(loss.sum(1)).float()
        Pt, PD = (torch.tensordot(w_t, trained[name], dims=1) for name in ("Pt", "Pd"))  # eq. 4
        before = _before(server, uploads)
        w_d = local_weights(
            trained["loss"], loss, _distances(trained["Pd"], before), alpha=self.params.alpha, beta=self.params.beta
        ).float()
        moved = torch.einsum("ik,i...->k...", w_d, trained["Pd"])
        personal = (1 - w_d.sum(0)).view(-1, 1, 1, 1) * before + moved  # eq. 9
        _record(uploads, site, trained["Pd"][0].nbytes)
        tables = {"personal": personal, "trained": trained["Pd"]}
        return {"Pt": Pt, "Pd": PD} | {name: _placed(server, name, uploads, new) for name, new in tables.items()}

    def arrivals(self, server: State, public: State) -> dict[str, Arrival]:
        """Three states that a newcomer may start from, by name: "global" is the global model, PT and PD; "init_glo" PT
        and the public data prompt; "init" the public start. The newcomer's mixture moves from the data prompt with
        which it starts (eq. 9)."""
        pairs = {"global": (server, server), "init_glo": (server, public), "init": (public, public)}
        return {
            name: Arrival({"Pt": task["Pt"], "Pd": data["Pd"]}, server | {"Pd": data["Pd"]})
            for name, (task, data) in pairs.items()
        }

    def model(self, state: State) -> State:
        """The prompts Pt and Pd that a state stands for: of an upload those trained, of a client's state those after
        the round, else the global ones."""
        if "number" in state and "loss" not in state:
            return {"Pt": state["Pt"], "Pd": state["personal"][int(state["number"]) - 1]}
        return {"Pt": state["Pt"], "Pd": state["Pd"]}

    @property
    def aggregation(self) -> str:
        return "other"  # weights by losses

    @property
    def messages(self) -> "DP2FLMessages":
        return DP2FLMessages(self)


class DP2FLMessages(DualMessages[DP2FL]):
    def broadcast_part(self, server: State, client: int) -> State:
        return {"Pd": server["trained"][client]} if client < len(server.get("trained", ())) else {}


def global_weights(total: Tensor) -> Tensor:
    """w_t [K], eq. 5: the share of each of K clients in the next global model, from the total loss [K] of its model on
    all validation records; lower losses weigh more. Equal shares of 1 / K for one client, or if all losses are 0."""
    K, everything = len(total), total.sum()
    if K == 1 or not everything:
        return torch.full_like(total, 1 / K)
    return (everything - total) / (everything * (K - 1))


def local_weights(before: Tensor, loss: Tensor, distance: Tensor, *, alpha: float, beta: float) -> Tensor:
    """w_d [K, K] of K clients, eqs. 6 to 14: entry [i, k] is the weight of client i's data prompt in client k's.

    before: loss_kk of the previous round, [K]; loss: loss_ik, [K, K]; distance: of i's trained data prompt from k's of
    the previous round, [K, K]. Column k sums to 1 if some client's loss is below k's previous one (0 if all of these
    are at distance 0), else to beta or, if no loss is below alpha times that one, to 0.
    """
    positive = loss < before  # eq. 6
    retained = ~positive & (loss < alpha * before)  # eq. 7
    initial = torch.where(distance > 0, (before - loss) / distance, 0.0)  # eq. 11
    better, worse = initial * positive, -initial * retained  # neither is negative
    least = initial.masked_fill(~positive, torch.inf).amin(0)
    gamma = _over(least, 3 * worse.amax(0))  # |gamma|, eq. 14
    together = better + torch.where(positive.any(0), gamma, 0.0) * worse
    alone = beta * _reversed(worse, retained)
    return torch.where(positive.any(0), _over(together, together.sum(0)), alone)  # eqs. 10 and 12


def _reversed(worse: Tensor, retained: Tensor) -> Tensor:
    """The first case of eq. 12 without beta: shares [i, k] of retained clients, larger for smaller |w|. Each column
    sums to 1, or to 0 if nobody is retained; equal shares where all weights `worse` are 0."""
    count, total = retained.sum(0), worse.sum(0)
    alike = _over(retained.to(worse.dtype), count)
    return torch.where((count > 1) & (total > 0), retained * _over(total - worse, total * (count - 1)), alike)


def _over(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 where `below` is not positive."""
    return torch.where(below > 0, above / below, 0.0)


def losses_of_all(trained: State, validation: Sequence[tuple[Sequence[str], int]], learner: Learner) -> State:
    """Line 9: {"loss": loss_ij [K, K]} of client i's model on client j's validation records, each (records, size)."""
    return {"loss": learner.losses(trained["Pt"], trained["Pd"], validation)}


def _distances(trained: Tensor, before: Tensor) -> Tensor:
    """Euclidean distances [K, K] between trained data prompts i and previous ones k, in double precision."""
    return torch.cdist(
        trained.flatten(1).double(), before.flatten(1).double(), compute_mode="donot_use_mm_for_euclid_dist"
    )


def _before(server: State, uploads: Sequence[Upload]) -> Tensor:
    """Data prompts [K, ..] from which clients started the round: a new client's is the global one."""
    return torch.stack([server["Pd"] if u.facts["new"] else server["personal"][u.client] for u in uploads])


def _placed(server: State, name: str, uploads: Sequence[Upload], rows: Tensor) -> Tensor:
    """The server's table `name` [C, ..], a row per client's number, with the new `rows` of those that took part. Rows
    of clients that have not taken part yet hold a global data prompt of an earlier round."""
    table = server.get(name, rows[:0])
    numbers = [upload.client for upload in uploads]
    placed = server["Pd"].expand(max(len(table), *(1 + k for k in numbers)), *rows.shape[1:]).clone()
    placed[: len(table)] = table
    placed[numbers] = rows
    return placed


def _record(uploads: Sequence[Upload], site: Site, data_prompt: int) -> None:
    """Record in `site.revealed` the new validation records, and the bytes that pass from all clients to all others
    (lines 2, 6 and 14). `data_prompt`: bytes of a data prompt."""
    revealed, others = site.revealed, len(uploads) - 1
    pictures = sum(int(upload.facts["bytes"]) for upload in uploads)
    revealed.bytes_up += pictures
    revealed.bytes_down += others * (pictures + len(uploads) * data_prompt)
    if pictures:
        revealed.facts["validation"] = {str(u.client): list(u.facts["validation"]) for u in uploads if u.facts["new"]}
