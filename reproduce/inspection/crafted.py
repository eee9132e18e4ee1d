"""Models of dishonest servers, each in a random honest host and of random strength.

A kind of `KINDS` draws a server's fields. Hosts are trained ones in half of the models. Where
a server refuses a host (`InputError`), the next one is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from leakgauge.errors import InputError
from leakgauge.registry import SERVERS
from leakgauge.servers import Broadcast, Server
from leakgauge.servers.convolutions import PublishedTaps
from leakgauge.servers.mkor import MKOR, Decoy, NLLRaw
from leakgauge.task import DataSpec, Mode
from reproduce.inspection.architectures import InputSkip, ReversibleNetwork, SubModelPerExample
from reproduce.inspection.zoo import FAMILIES, Zoo, ZooModel
from reproduce.inspection.zoo_dice import Dice
from reproduce.inspection.zoo_families import vgg_of
from reproduce.inspection.zoo_formats import drawn_format
from reproduce.inspection.zoo_initial import initialise
from reproduce.inverting_gradients.identity_convolutions import IdentityConvolutions
from reproduce.label_flip import LabelFlip
from reproduce.mkor.identity import IdentityTaps
from reproduce.mkor.lenet5 import LeNet5Taps
from reproduce.mkor.quiet import AbsentClass, Inconspicuous, QuietTaps

TRIES = 200
TRAINED_HOSTS = 2
"""Trained hosts of each family."""
STEALTH = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Noise on the entries that a quiet MKOR would have zero, as a share of honest weights."""
ANY = ("mlp", "lenet5", "plain", "vgg", "convnet", "resnet", "groupnorm")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A dishonest server to draw.

    Attributes:
        hosts: families of honest networks that it is put into.
        make: the server object for a host family.
        trained: hosts are always trained.
        classes: least number of classes of a host.
    """

    hosts: Sequence[str]
    make: Callable[[Dice, str, DataSpec], Server]
    trained: bool = False
    classes: int = 2


def _plain(
    server: str | Callable[..., Server], **fields: Callable[[Dice, DataSpec], Any]
) -> Callable[[Dice, str, DataSpec], Server]:
    """A server of the package by its name, or another one's class."""
    build = SERVERS[server].build if isinstance(server, str) else server

    def make(dice: Dice, _: str, data: DataSpec) -> Server:
        made: Server = build(**{name: draw(dice, data) for name, draw in fields.items()})
        return made

    return make


def _published(dice: Dice, family: str, _: DataSpec) -> Server:
    taps = {"vgg": PublishedTaps, "plain": PublishedTaps, "lenet5": LeNet5Taps, "modified": IdentityTaps}[family]
    loss = dice.pick(("decoy", "absent-class", "nll-raw"))
    return MKOR(taps=taps(), loss={"decoy": Decoy, "absent-class": AbsentClass, "nll-raw": NLLRaw}[loss]())


def _quiet(noise: float) -> Callable[[Dice, str, DataSpec], Server]:
    """Nothing conspicuous in the last layer: classes that the batch lacks undo the soft-max, no decoy."""

    def make(dice: Dice, _: str, __: DataSpec) -> Server:
        taps = QuietTaps(beta=dice.pick((None, 1.0, 2.0)), noise=noise, directions=dice.pick((None, None, 2, 1, 0)))
        # Small, so that logits are nearly equal; noise beyond β² drowns the signal, and the server then reads nothing.
        beta = dice.scale(0.01, 0.1)
        head = Inconspicuous(beta=beta, noise=noise * beta**2)
        return MKOR(taps=taps, head=head, loss=AbsentClass())

    return make


def _decoyed(dice: Dice, _: str, __: DataSpec) -> Server:
    noise = dice.pick(STEALTH)
    taps = QuietTaps(beta=dice.pick((None, 1.0, 2.0)), noise=noise, directions=dice.pick((None, None, 2, 1)))
    head = Inconspicuous(beta=dice.pick((1.0, 3.0)), noise=noise)
    return MKOR(taps=taps, head=head, loss=Decoy(bias=dice.pick((15.0, 30.0))))


KINDS: Mapping[str, Kind] = {
    "mkor-published": Kind(hosts=("vgg", "vgg", "plain", "lenet5", "modified"), make=_published),
    **{f"mkor-quiet-{s:g}": Kind(hosts=("vgg", "vgg", "plain"), make=_quiet(s), classes=8) for s in STEALTH},
    "mkor-quiet-decoy": Kind(hosts=("vgg", "vgg", "plain"), make=_decoyed, classes=8),
    "imprint": Kind(hosts=("mlp",), make=_plain("imprint", gain=lambda dice, _: dice.scale(0.03, 3.0))),
    "trap-weights": Kind(
        hosts=("mlp",),
        make=_plain("trap-weights", factor=lambda dice, _: 1 + dice.scale(0.01, 0.2)),
    ),
    "class-fishing": Kind(
        hosts=ANY,
        make=_plain(
            "class-fishing",
            target=lambda dice, data: dice.whole(0, data.classes - 1),
            saturation=lambda dice, _: dice.scale(30, 1000),
        ),
    ),
    "identity-convolutions": Kind(hosts=("plain", "vgg", "lenet5"), make=_plain(IdentityConvolutions)),
    "label-flip": Kind(
        hosts=ANY,
        trained=True,
        make=_plain(
            LabelFlip,
            shift=lambda dice, data: dice.whole(1, data.classes - 1),
            negate=lambda dice, _: dice.chance(0.3),
        ),
    ),
    "imprint-block": Kind(
        hosts=ANY,
        make=_plain("imprint-block", bins=lambda dice, _: dice.pick((16, 64, 256)), gain=lambda d, _: d.scale(0.01, 1)),
    ),
    "linear-first": Kind(
        hosts=ANY,
        make=_plain(
            "linear-first", rows=lambda dice, _: dice.pick((64, 256)), factor=lambda dice, _: 1 + dice.scale(0.01, 0.2)
        ),
    ),
    "input-skip": Kind(hosts=ANY, make=_plain(InputSkip)),
    "reversible": Kind(hosts=ANY, make=_plain(ReversibleNetwork)),
    "sub-model-per-example": Kind(
        hosts=ANY,
        make=_plain(SubModelPerExample, copies=lambda dice, _: dice.pick((16, 64, 256))),
    ),
}


def crafted(zoo: Zoo, kind: str, index: int) -> tuple[ZooModel, ZooModel, Broadcast]:
    """The dishonest model of that number, its honest host, and the broadcast with the server's secret.

    Raises:
        InputError: the server refused all hosts; the last reason.
    """
    entry, dice, last = KINDS[kind], zoo.dice(f"crafted-{kind}", index), None
    for _ in range(TRIES):
        large = index % 30 == 7 and "vgg" in entry.hosts and last is None
        family = "vgg" if large else dice.pick(entry.hosts)
        host = _large(zoo, dice) if large else _host(zoo, dice, family, trained=entry.trained)
        if host.task.data.classes < entry.classes:
            continue
        try:
            server = entry.make(dice, family, host.task.data)
            broadcast = server.broadcast(host.task, dice.generator)
        except InputError as error:
            last = error
            continue
        return _model(host, kind, broadcast, server), host, broadcast
    raise InputError("kind", f"{kind} found no host in {TRIES} draws", str(last or "none has enough classes"))


def _model(host: ZooModel, kind: str, broadcast: Broadcast, server: Server) -> ZooModel:
    task = broadcast.task
    module = task.module
    values = {**task.parameters, **task.buffers}
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            tensor.copy_(values[name])
    text = f"{kind}: {server}; host {host.description}"
    return replace(host, module=module.eval(), task=task, kind=kind, description=text, sent=torch.float32)


def _host(zoo: Zoo, dice: Dice, family: str, *, trained: bool) -> ZooModel:
    """Half of them trained."""
    if family == "modified":
        return _modified(zoo, dice)
    if trained or dice.chance(0.5):
        return _plain_mode(zoo.base(dice.whole(0, TRAINED_HOSTS - 1), family))
    data = drawn_format(dice, family)
    with dice.torch_seeded():
        module = FAMILIES[family](dice, data)
    note = initialise(module, dice)
    return _plain_mode(zoo.wrap(module, data, dice, "honest", family, "untrained", note))


def _plain_mode(host: ZooModel) -> ZooModel:
    """In eval mode: most servers refuse dropout and batch statistics."""
    return replace(host, task=replace(host.task, module=host.task.module.eval(), mode=Mode.EVAL, stochastic=False))


def _large(zoo: Zoo, dice: Dice) -> ZooModel:
    """VGG-16 in full width at 32 px."""
    data = DataSpec(shape=(3, 32, 32), classes=dice.pick((10, 100)))
    with dice.torch_seeded():
        module = vgg_of(data, depth=16, width=64, hidden=4096, norm=False, dropout=0.0)
    return _plain_mode(zoo.wrap(module, data, dice, "honest", "vgg16-full", "untrained", "torch default"))


def _modified(zoo: Zoo, dice: Dice) -> ZooModel:
    """MKOR's modified network: two convolutions that keep the size, one linear layer."""
    data = drawn_format(dice, "modified", largest=32)
    channels, pixels = data.shape[0], data.shape[0] * data.shape[1] * data.shape[2]
    with dice.torch_seeded():
        convolutions = [nn.Conv2d(channels, channels, 5, padding=2), nn.ReLU()]
        convolutions += [nn.Conv2d(channels, channels, 5, padding=2), nn.ReLU()]
        module = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(pixels, data.classes), nn.ReLU())
    return _plain_mode(zoo.wrap(module, data, dice, "honest", "modified", "untrained", "torch default"))
