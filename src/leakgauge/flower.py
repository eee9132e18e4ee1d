"""Capturing rounds of Flower: on the client, on the wire, and on the server. Needs the extra ``flower``.

Runs with Flower 1.21 and later; imports only `flwr.app` and `flwr.serverapp`, which are public.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from leakgauge.capture import Recorder, named, seen, unbroken, watching
from leakgauge.capture.recorder import log
from leakgauge.guard import SendingGuard
from leakgauge.update import UpdateKind

__all__ = ["CaptureMod", "CaptureNumPyClient", "CaptureStrategy", "GuardMod", "seen"]

ARRAYS = "arrays"  # the record that holds the parameters in Flower's strategies, if they are not told otherwise
REFUSED = 290  # code of the error that a server gets in place of an update that was not sent; Flower's own are below
COUNT = "num-examples"  # the metric under which Flower's strategies expect the number of examples


def _state(records: RecordDict) -> dict[str, Tensor]:
    """The arrays of all records by name. Of records that share names the one that strategies call "arrays" counts, or
    the first: others, such as control variates, are no parameters."""
    found: dict[str, Tensor] = {}
    for key in sorted(records.array_records, key=lambda key: key != ARRAYS):
        state = records.array_records[key].to_torch_state_dict()
        if found.keys() & state.keys():
            said = "arrays '%s' have the parameters' names: they travel, and no capture and no audit has them"
            log.warning(said, key)
        else:
            found |= state
    return found


def _trains(msg: Message) -> bool:
    return bool(msg.content.array_records) and msg.metadata.message_type.split(".")[0] == "train"


def _keep(recorder: Recorder, before: dict[str, Tensor], reply: Message, **known: Any) -> None:
    """Writes a round, with what else its reply carries: a loss says something of the examples, too."""
    if reply.has_error() or not reply.content.array_records:
        return
    metrics = {key: value for record in reply.content.metric_records.values() for key, value in record.items()}
    count = next((m[COUNT] for m in reply.content.metric_records.values() if COUNT in m), None)
    recorder.keep(
        before,
        _state(reply.content),
        count=int(count) if isinstance(count, int | float) else None,
        facts={f"reply.{key}": str(value) for key, value in metrics.items()},
        **known,
    )


@dataclass(frozen=True)
class CaptureMod:
    """A client mod: ``ClientApp(mods=[CaptureMod("/captures")])``.

    The first mod of a list is the outermost and sees the update as it goes over the wire; the last sees it raw. Two of
    them, each with a `side` of its own, bracket a defence. Without the round's examples an audit cannot score: keep
    them by `examples`, or by a call of `seen` on each minibatch of the training loop."""

    #: where captures go; give an absolute path, for Flower runs clients in processes and folders of their own. `None`:
    #: the run's configuration says it, ``--run-config 'captures="/path"'``.
    folder: Path | str | None = None
    #: whether to keep minibatches as `leakgauge.capture.recorder.Listening` hears them: inputs of the outermost module,
    #: targets of torch's classification loss
    examples: bool = False
    side: str = ""  #: a word for this place in the list of mods
    sends: UpdateKind | None = None  #: what the reply is; `None` for parameters.
    facts: dict[str, str] = field(default_factory=dict)  #: what the plan should say, e.g. ``{"optimiser": "Adam"}``.

    def __call__(self, msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if not _trains(msg):
            return call_next(msg, context)
        received = RecordDict(dict(msg.content.items()))  # the arrays are shared, not copied
        with watching(listen=self.examples) as examples:
            reply = call_next(msg, context)
        with unbroken("a client's round"):
            folder = self.folder if self.folder is not None else str(context.run_config["captures"])
            rounds = [c["server-round"] for c in received.config_records.values() if "server-round" in c]
            _keep(
                Recorder(folder=folder, sends=self.sends, facts=self.facts),
                _state(received),
                reply,
                round_=str(rounds[0]) if rounds else "unknown",
                node=str(context.node_id),
                side=self.side,
                examples=examples,
            )
        return reply


@dataclass(frozen=True)
class GuardMod:
    """A client mod that sends no update on which the stated defence does not show: as the first of the list,
    ``ClientApp(mods=[GuardMod(SendingGuard(…)), …])``. The server gets an error that says why.

    It remembers the round before within one process: noise that repeats from round to round is seen there alone.
    """

    guard: SendingGuard

    def __call__(self, msg: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        if not _trains(msg):
            return call_next(msg, context)
        before = {k: v.clone() for k, v in _state(msg.content).items()}
        reply = call_next(msg, context)
        if reply.has_error():
            return reply
        records = [record.to_torch_state_dict() for record in reply.content.array_records.values()]
        twice = {name for i, state in enumerate(records) for name in state if any(name in r for r in records[:i])}
        found = [f"{name} is sent twice" for name in sorted(twice)]
        found += self.guard.refuse(before, _state(reply.content)) if not found else ()
        if not found:
            return reply
        log.error("this update is not sent: %s", "; ".join(found))
        return Message(Error(REFUSED, f"not sent: {'; '.join(found)}"), reply_to=msg)


class CaptureStrategy(Strategy):
    """Wraps a strategy of Flower's Message API and writes what an honest but curious server sees. `sends` is what
    replies are; `None` for parameters."""

    def __init__(self, inner: Strategy, folder: Path | str, *, sends: UpdateKind | None = None) -> None:
        self.inner, self.recorder = inner, Recorder(folder=folder, sends=sends)
        self._sent: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = arrays
        return self.inner.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        with unbroken("what the server sent"):
            before = {} if self._sent is None else self._sent.to_torch_state_dict()
            for reply in replies:
                with unbroken("a reply"):
                    node = str(reply.metadata.src_node_id)
                    _keep(self.recorder, before, reply, round_=str(server_round), node=node, side="server")
        return self.inner.aggregate_train(server_round, replies)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.inner.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.inner.summary()


class CaptureNumPyClient:
    """Wraps a `flwr.client.NumPyClient`: all calls go to it, and `fit` is captured. This API sends arrays without
    names, which are ``list(model.state_dict())``; `node` is a word for this client, e.g. its partition."""

    def __init__(self, inner: Any, folder: Path | str, names: Sequence[str], *, node: str = "0") -> None:
        self._inner, self._recorder, self._names, self._node = inner, Recorder(folder=folder), list(names), node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fit(self, parameters: list[Any], config: dict[str, object]) -> tuple[list[Any], int, dict[str, object]]:
        before = [p.copy() for p in parameters]  # a client may train in them
        with watching() as examples:
            reply = self._inner.fit(parameters, config)
        with unbroken("a client's round"):
            arrays, count, metrics = reply
            self._recorder.keep(
                named(before, self._names),
                named(arrays, self._names),
                round_=str(config.get("server_round", config.get("server-round", "unknown"))),
                node=self._node,
                count=int(count),
                facts={f"reply.{k}": str(v) for k, v in metrics.items()},
                examples=examples,
            )
        return reply  # type: ignore[no-any-return]
