"""The ClientApp: unpack, delegate, pack. torch is loaded by the first message that needs it."""

from __future__ import annotations

from leanfed.deployment.operations.extra import require_flower

require_flower()

from flwr.app import Context, Message  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say who this node is, or why it cannot take part; send a probe back; or do the next step of a masked sum."""
    import time

    from leanfed.deployment.learning.config import node_config, run_config_of_node
    from leanfed.deployment.learning.declining import decline
    from leanfed.deployment.learning.messages import (
        PROBE,
        VERSION,
        Declined,
        HelloRequest,
        Probe,
        Speaks,
        pack,
        unpack,
    )
    from leanfed.deployment.learning.probes import echo
    from leanfed.deployment.learning.work import greet
    from leanfed.errors import LeanfedError

    began = time.perf_counter()
    if PROBE in message.content:
        return Message(pack(echo=echo(unpack(message.content, PROBE, Probe), began)), reply_to=message)
    config = run_config_of_node(context.run_config)
    if "request" not in message.content:
        from leanfed.deployment.masking.answers import answer

        return Message(answer(message.content, config, node_config(context.node_config, config)), reply_to=message)
    request, node = unpack(message.content, "request", HelloRequest), node_config(context.node_config, config)
    try:
        hello, device = greet(request.run, config.settings, node)
    except LeanfedError as error:
        return Message(pack(declined=Declined(why=decline(node, error))), reply_to=message)
    speaks = Speaks(version=VERSION, work_s=time.perf_counter() - began)
    return Message(pack(hello=hello, device=device, speaks=speaks), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Carry out an order: test if asked, train if asked."""
    from leanfed.deployment.learning.config import node_config, run_config_of_node
    from leanfed.deployment.learning.declining import decline
    from leanfed.deployment.learning.messages import (
        ORDER,
        Behind,
        BehindError,
        Declined,
        Order,
        base_frames,
        pack,
        unpack,
    )
    from leanfed.deployment.learning.work import carry_out
    from leanfed.deployment.masking.answers import Hidden
    from leanfed.deployment.masking.node import MaskRefusedError
    from leanfed.deployment.masking.records import MASKS, MaskOrder
    from leanfed.errors import StorageError

    config = run_config_of_node(context.run_config)
    order = unpack(message.content, ORDER, Order)
    node = node_config(context.node_config, config)
    masks = unpack(message.content, MASKS, MaskOrder) if MASKS in message.content else None
    try:
        answer, device = carry_out(order, base_frames(message.content), config.settings, node, Hidden(config, masks))
    except BehindError as error:
        return Message(pack(behind=Behind(run=order.run, token=order.token, why=str(error))), reply_to=message)
    except MaskRefusedError as error:
        return Message(pack(declined=Declined(why=decline(node, error), spent=error.spent or None)), reply_to=message)
    except StorageError as error:  # a full disk: told here, and to the server by the error that Flower makes of it
        decline(node, error)
        raise
    return Message(pack(answer=answer, device=device), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """An order without training."""
    return train(message, context)
