"""Records what a Flower ServerApp sends and receives, for an audit. One file: copy it into your app.

    recording = RecordingGrid(grid, recorder)
    result = strategy.start(grid=recording, ...)
    recording.close(result.arrays)

A strategy hands its messages to the grid and gets the replies from it. So this is where a message is what the server
really received: strategies for differential privacy clip the replies in place afterwards.
"""

import logging


class RecordingGrid:
    """A grid that also writes down each round of training; in all else it is the `grid` that it wraps. Messages are not
    changed.

    recorder: a Recorder of fedaudit_recorder.py
    client: the metric in which a client says its number: node ids are drawn anew for every run
    records: the metric with its number of records
    message_type: what is recorded; other exchanges, such as evaluations, are not
    first_round: the number of the first round, where a training goes on from a checkpoint

    ValueError: clients were sent different models, a reply does not say which client it is from, two say the same, or
    the recorder refuses what it is given.
    """

    def __init__(
        self, grid, recorder, *, client="partition-id", records="num-examples", message_type="train", first_round=0
    ):
        self._grid, self._recorder = grid, recorder
        self._client, self._records, self._message_type = client, records, message_type
        self._round = first_round  # of the next exchange
        self._last = None  # the global model of the last round, as tensors
        self._empty = False  # whether the round that is open holds nothing
        self._clients = {}  # number of the client by node id, of all nodes that have replied

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        asked = [message for message in messages if message.metadata.message_type == self._message_type]
        if asked:
            self._last = self._same_state(asked)
            self._recorder.broadcast(self._round, self._last)
            self._empty = True
        replies = list(self._grid.send_and_receive(messages, timeout=timeout))
        if asked:
            self._receive({message.metadata.dst_node_id for message in asked}, replies)
        return replies

    def close(self, arrays=None):
        """Finish the recording. arrays: the global model after the last round; an empty one or None if no round was
        aggregated."""
        if not self._empty:  # otherwise the model of the last round is that after the round before
            self._recorder.close(as_tensors(arrays) if arrays else self._last)

    def _same_state(self, messages):
        first = the_arrays(messages[0])
        for message in messages[1:]:
            arrays = the_arrays(message)
            if arrays.keys() != first.keys() or any(arrays[name].data != first[name].data for name in first):
                raise ValueError(f"round {self._round}: clients are sent different models; a recording holds one")
        return as_tensors(first)

    def _receive(self, nodes, replies):
        """Record the round's replies. A round of which nothing can be told, since all nodes failed and none has ever
        said its number, is recorded over by the next one."""
        by_node = {reply.metadata.src_node_id: reply for reply in replies if not reply.has_error()}
        received = {node: by_node[node] for node in nodes & by_node.keys()}
        numbers = {node: self._number(reply) for node, reply in received.items()}
        if len({*numbers.values()}) < len(numbers):
            raise ValueError(
                f"round {self._round}: two replies have the same {self._client}: {sorted(numbers.values())}"
            )
        self._clients.update(numbers)
        for node, reply in received.items():
            records = metric(reply, self._records)
            records = None if records is None else int(records)
            self._recorder.upload(self._round, numbers[node], as_tensors(the_arrays(reply)), records=records)
            self._empty = False
        for node in nodes - received.keys():
            if node in self._clients:
                self._recorder.failed(self._round, self._clients[node])
                self._empty = False
            else:
                text = "round %d: node %d sent nothing, and has not yet said which client it is: not recorded"
                logging.getLogger("flwr").warning(text, self._round, node)
        self._round += not self._empty

    def _number(self, reply):
        number = metric(reply, self._client)
        if number is None:
            raise ValueError(f"a reply has no metric {self._client!r}, which says from which client it is")
        return int(number)


def metric(message, name):
    """A metric of a message, in whichever of its records it stands; None if it has none of that name."""
    values = [record[name] for record in message.content.metric_records.values() if name in record]
    return values[0] if values else None


def the_arrays(message):
    """The one ArrayRecord of a message. ValueError: it has none or several."""
    records = message.content.array_records
    if len(records) != 1:
        raise ValueError(f"a message has {len(records)} array records ({', '.join(records)}), where one is recorded")
    return next(iter(records.values()))


def as_tensors(arrays):
    """Tensors by name, as copies: what a strategy does to `arrays` later does not change them."""
    return {name: tensor.clone() for name, tensor in arrays.to_torch_state_dict().items()}
