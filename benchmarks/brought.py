"""What people bring: `python benchmarks/brought.py --out rows.jsonl` (needs transformers, peft and monai).

Networks of public packages and of everyday code, at toy size and fresh, each with a target, a client and a batch, and
beside what `lg.attack` reads what a few lines by hand read off the update. A case is written once, and goes every way
in that a user has: `lg.attack`, `lg.audit`, a plan in YAML that names the task by ``brought:step``, and a captured
round on disk. The cases are named here, before any row; a row is written after each case and way, and what is there is
not run again. `--table` prints the page of the docs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from click.testing import CliRunner
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.capture import Recorder, RoundExamples
from leakgauge.cli import main as command
from leakgauge.clients import Protocol
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve
from leakgauge.step import losses
from leakgauge.step.parts import BatchPart, Target
from leakgauge.study.evaluate import Truth, evaluate, evaluate_parts
from leakgauge.study.evaluate_texts import evaluate_texts

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
MANY = 20000
"""Evaluations where few numbers are searched for, each of which costs little."""
EXACT = 60.0
"""dB from which a picture or row of numbers counts as read exactly."""


@dataclass(frozen=True)
class Case:
    """One thing that somebody has.

    Attributes:
        net: makes the network, fresh.
        loss: as a training loop has it.
        parts: of a batch, by name.
        n: examples of a batch.
        client: how they become an update, as a plan has it.
        hand: reads secret parts off the update's tensors, given the network; `None` where no few lines do.
        mode: of the network.
        evaluations: of the attack; `None` for those of the command.
    """

    net: Callable[[], nn.Module]
    loss: Loss
    parts: Mapping[str, BatchPart | Tensor]
    n: int = 1
    client: Mapping[str, Any] = field(default_factory=lambda: {"fedsgd": {}})
    hand: Callable[[nn.Module, Mapping[str, Tensor], Mapping[str, BatchPart | Tensor]], Batch] | None = None
    mode: str = "eval"
    evaluations: int | None = None

    @property
    def protocol(self) -> Protocol:
        return resolve(CLIENTS, self.client, "client").value  # type: ignore[no-any-return]


# Readings by hand.


def rows(name: str, *, part: str) -> Callable[..., Batch]:
    """Rows of a first linear layer over their biases' gradients: of one example each, where only it drives the unit."""

    def read(_net: nn.Module, sent: Mapping[str, Tensor], _parts: Mapping[str, BatchPart | Tensor]) -> Batch:
        weight, bias = sent[f"{name}.weight"].double(), sent[f"{name}.bias"].double()
        live = bias.abs() > 1e-9 * bias.abs().max()
        given = weight[live].flatten(1) / bias[live, None]
        agreeing = (given[:, None] - given[None]).abs().amax(2) < 1e-4 * given.abs().max()
        kept = {int(row.nonzero()[0]) for row in agreeing if row.sum() > 1} or {int(bias[live].abs().argmax())}
        return {part: given[sorted(kept)]}

    return read


def table(name: str, *, part: str) -> Callable[..., Batch]:
    """Rows of a table that moved: the set of tokens."""

    def read(_net: nn.Module, sent: Mapping[str, Tensor], _parts: Mapping[str, BatchPart | Tensor]) -> Batch:
        return {part: sent[name].abs().sum(1).nonzero().flatten()}

    return read


def places(weight: str, position: str, *, part: str, size: int, first: int = 1) -> Callable[..., Batch]:
    """Patches of one picture: each place's error signal is its position's gradient, so one least squares gives them."""

    def read(_net: nn.Module, sent: Mapping[str, Tensor], parts: Mapping[str, BatchPart | Tensor]) -> Batch:
        g = sent[weight].double()
        signals = sent[position].double().flatten(0, -2)[first:]
        found = torch.linalg.lstsq(signals.T, g.flatten(1)).solution
        spec = parts[part]
        assert isinstance(spec, BatchPart)
        folded = F.fold(found.T[None], tuple(spec.shape[1:]), size, stride=size)
        return {part: folded.flatten(1)}

    return read


# Networks.


def mlp(inputs: int, outputs: int, width: int = 128) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class Series(nn.Module):
    """A recurrent network on vital signs, as hospitals have them."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], outputs: int) -> None:
        super().__init__()
        self.body, self.head = kind(6, 32, batch_first=True), nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.transpose(1, 2))[0][:, -1])  # type: ignore[no-any-return]


class Entities(nn.Module):
    """A table with categories that are looked up."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(7, 4), nn.Embedding(12, 6), nn.Embedding(3, 2)])
        self.body = nn.Sequential(nn.Linear(5 + 12, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        looked = [t(kinds[:, i]) for i, t in enumerate(self.tables)]
        return self.body(torch.cat([numbers / 50, *looked], 1))  # type: ignore[no-any-return]


class Answering(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"loss": pixel_values.new_zeros(()), "logits": self.body(pixel_values)}


class Pooled(nn.Module):
    """Means of word vectors, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(500, 32, mode="mean"), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids))  # type: ignore[no-any-return]


def unet(channels: int = 1, classes: int = 2) -> nn.Module:
    """A small U-Net of everyday code."""

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.deep = nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 64, 3, stride=2, padding=1)
            self.inside = nn.Conv2d(64, 64, 3, padding=1)
            self.up, self.out = nn.ConvTranspose2d(64, 16, 2, stride=2), nn.Conv2d(32, classes, 1)

        def forward(self, x: Tensor) -> Tensor:
            high = self.down(x).relu()
            low = self.inside(self.deep(high).relu()).relu()
            return self.out(torch.cat([high, self.up(low).relu()], 1))  # type: ignore[no-any-return]

    return UNet()


def vit(kind: str) -> nn.Module:
    import transformers as hf

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    picture = {"image_size": 16, "patch_size": 4, "num_labels": 5}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if kind == "vit":
        return hf.ViTForImageClassification(hf.ViTConfig(**sizes, **picture, **off))
    if kind == "deit":
        return hf.DeiTForImageClassification(hf.DeiTConfig(**sizes, **picture, **off))
    if kind == "dinov2":
        return hf.Dinov2ForImageClassification(hf.Dinov2Config(**sizes, **picture, mlp_ratio=2))
    if kind == "beit":
        return hf.BeitForImageClassification(hf.BeitConfig(**sizes, **picture, use_absolute_position_embeddings=True))
    if kind == "convnext":
        config = hf.ConvNextConfig(hidden_sizes=[32, 64], depths=[1, 1], num_stages=2, patch_size=2, num_labels=5)
        return hf.ConvNextForImageClassification(config)
    config = hf.ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", num_labels=5)
    return hf.ResNetForImageClassification(config)


def text(kind: str, *, tied: bool = True, heads: int = 4) -> nn.Module:
    import transformers as hf

    if kind == "gpt2":
        config = hf.GPT2Config(vocab_size=500, n_positions=32, n_embd=64, n_layer=2, n_head=heads)
        config.tie_word_embeddings = tied
        return hf.GPT2LMHeadModel(config)
    if kind == "llama":
        config = hf.LlamaConfig(
            vocab_size=500,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=32,
            tie_word_embeddings=tied,
        )
        return hf.LlamaForCausalLM(config)
    if kind == "t5":
        return hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=500,
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=2,
                num_heads=4,
                decoder_start_token_id=0,
                pad_token_id=0,
            )
        )
    sizes = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "distilbert":
        config = hf.DistilBertConfig(vocab_size=500, dim=64, n_layers=2, n_heads=4, hidden_dim=128, num_labels=3)
        return hf.DistilBertForSequenceClassification(config)
    if kind == "roberta":
        config = hf.RobertaConfig(**sizes, intermediate_size=128, max_position_embeddings=40, num_labels=3)
        return hf.RobertaForSequenceClassification(config)
    config = hf.BertConfig(**sizes, intermediate_size=128, max_position_embeddings=32, num_labels=3)
    return hf.BertForSequenceClassification(config)


def adapted(net: nn.Module, rank: int, targets: list[str], kind: str) -> nn.Module:
    import peft

    return peft.get_peft_model(net, peft.LoraConfig(r=rank, lora_alpha=16, target_modules=targets, task_type=kind))


def monai(kind: str) -> nn.Module:
    from monai.networks import nets

    if kind == "unet":
        return nets.UNet(2, 1, 2, channels=(16, 32, 64), strides=(2, 2), norm="batch")
    if kind == "unet3d":
        return nets.UNet(3, 1, 2, channels=(16, 32, 64), strides=(2, 2), norm="batch")
    if kind == "segresnet":
        return nets.SegResNet(3, 8, 1, 2, blocks_down=(1, 1), blocks_up=(1,))
    if kind == "unetr":
        return nets.UNETR(1, 2, (16, 16, 16), feature_size=4, hidden_size=96, mlp_dim=128, num_heads=4)
    if kind == "vit3d":
        return nets.ViT(
            1, (16, 16, 16), (4, 4, 4), hidden_size=96, mlp_dim=128, num_layers=2, num_heads=4, classification=True,
            num_classes=3, post_activation="none",
        )  # fmt: skip
    if kind == "densenet":
        return nets.DenseNet(2, 1, 6, init_features=16, growth_rate=8, block_config=(2, 2))
    return nets.DenseNet121(2, 1, 6)


PICTURE = lg.Image((3, 16, 16))
GREY = lg.Image((1, 12, 12))
VITALS = lg.Series((6, 12))
NUMBERS = lg.Numbers(10, low=(0.0,) * 5 + (-50.0,) * 5, high=(1.0,) * 5 + (150.0,) * 5)
VOLUME = lg.Volume((1, 16, 16, 16))


def classes(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b["x"]), b["y"])


def weighted(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b["x"]), b["y"], weight=torch.linspace(0.5, 2, 5).to(b["x"]))


def own_loss(m: nn.Module, b: Batch) -> Tensor:
    """As the Hugging Face trainer has it."""
    return m(pixel_values=b["x"], labels=b["y"]).loss  # type: ignore[no-any-return]


def answered(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b["x"])["logits"], b["y"])


def squares(m: nn.Module, b: Batch) -> Tensor:
    return F.mse_loss(m(b["x"])[:, 0], b["y"])


def huber(m: nn.Module, b: Batch) -> Tensor:
    return losses.huber(m(b["x"]), b["y"])


def one_logit(m: nn.Module, b: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(m(b["x"])[:, 0], b["y"].to(b["x"].dtype)[:, 0])


def several(m: nn.Module, b: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(m(b["x"]), b["y"].to(b["x"].dtype))


def masked(m: nn.Module, b: Batch) -> Tensor:
    return losses.dice_ce(m(b["x"]), b["y"])


def two_sided(m: nn.Module, b: Batch) -> Tensor:
    return losses.bce(m(b["x"]), b["y"])


def survival(m: nn.Module, b: Batch) -> Tensor:
    return losses.cox(m(b["x"]), b["y"])


def entities(m: nn.Module, b: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(m(b["numbers"], b["kinds"])[:, 0], b["y"].float()[:, 0])


def same_again(m: nn.Module, b: Batch) -> Tensor:
    return F.mse_loss(m(b["x"]), b["x"].flatten(1))


def causal(m: nn.Module, b: Batch) -> Tensor:
    return m(input_ids=b["text"], labels=b["text"]).loss  # type: ignore[no-any-return]


def sequence(m: nn.Module, b: Batch) -> Tensor:
    return m(input_ids=b["text"], labels=b["y"]).loss  # type: ignore[no-any-return]


def bagged(m: nn.Module, b: Batch) -> Tensor:
    return F.cross_entropy(m(b["text"]), b["y"])


def translated(m: nn.Module, b: Batch) -> Tensor:
    return m(input_ids=b["text"], labels=b["y"]).loss  # type: ignore[no-any-return]


def of(x: BatchPart, y: BatchPart) -> Mapping[str, BatchPart | Tensor]:
    return {"x": x, "y": y}


CLASSES5, TEXT = lg.Classes(5), lg.Text(12, 500)
ONE_STEP = {"fedavg": {"epochs": 1, "batch_size": 4, "lr": 0.1}}
ADAM = {"local-training": {"optimiser": {"adam": {"lr": 0.001}}, "epochs": 1, "batch_size": 4}}
MOMENTUM = {"local-training": {"optimiser": {"sgd": {"lr": 0.05, "momentum": 0.9}}, "epochs": 2, "batch_size": 2}}
SPOKEN: Mapping[str, BatchPart | Tensor] = {"text": TEXT, "y": lg.Classes(3)}
FIRST = rows("1", part="x")


def _vits() -> Iterator[tuple[str, Case]]:
    where = {
        "vit": ("vit.embeddings.patch_embeddings.projection.weight", "vit.embeddings.position_embeddings", 1),
        "deit": ("deit.embeddings.patch_embeddings.projection.weight", "deit.embeddings.position_embeddings", 2),
        "dinov2": ("dinov2.embeddings.patch_embeddings.projection.weight", "dinov2.embeddings.position_embeddings", 1),
        "beit": ("beit.embeddings.patch_embeddings.projection.weight", "beit.embeddings.position_embeddings", 1),
    }
    for name, (weight, position, first) in where.items():
        hand = places(weight, position, part="x", size=4, first=first)
        yield (
            f"Hugging Face {name}, classes",
            Case(lambda name=name: vit(name), own_loss, of(PICTURE, CLASSES5), hand=hand),
        )
        yield (
            f"Hugging Face {name}, classes, batch 2",
            Case(lambda name=name: vit(name), own_loss, of(PICTURE, CLASSES5), n=2),
        )


def _texts() -> Iterator[tuple[str, Case]]:
    gpt, llama = {"text": TEXT}, {"text": TEXT}
    yield (
        "GPT-2, tied head, own loss",
        Case(lambda: text("gpt2"), causal, gpt, hand=table("transformer.wte.weight", part="text")),
    )
    yield (
        "GPT-2, untied head, own loss",
        Case(lambda: text("gpt2", tied=False), causal, gpt, hand=table("transformer.wte.weight", part="text")),
    )
    yield "GPT-2, batch 2", Case(lambda: text("gpt2", tied=False), causal, gpt, n=2)
    yield "Llama, tied head, own loss", Case(lambda: text("llama"), causal, llama)
    yield (
        "Llama, untied head, own loss",
        Case(lambda: text("llama", tied=False), causal, llama, hand=table("model.embed_tokens.weight", part="text")),
    )
    yield (
        "T5, one table under two names",
        Case(lambda: text("t5"), translated, {"text": TEXT, "y": lg.NextToken(500, 6)}),
    )
    for kind in ("bert", "distilbert", "roberta"):
        base = {"bert": "bert", "distilbert": "distilbert", "roberta": "roberta"}[kind]
        hand = table(f"{base}.embeddings.word_embeddings.weight", part="text")
        yield f"{kind}, classes", Case(lambda kind=kind: text(kind), sequence, SPOKEN, hand=hand)
        yield f"{kind}, classes, batch 2", Case(lambda kind=kind: text(kind), sequence, SPOKEN, n=2, hand=hand)
    yield (
        "bag of words, classes",
        Case(Pooled, bagged, {"text": TEXT, "y": lg.Classes(2)}, hand=table("words.weight", part="text")),
    )
    for rank in (8, 16):
        yield (
            f"GPT-2, LoRA r = {rank} on c_attn",
            Case(
                lambda rank=rank: adapted(text("gpt2", tied=False), rank, ["c_attn"], "CAUSAL_LM"),
                causal,
                gpt,
            ),
        )
        yield (
            f"Llama, LoRA r = {rank} on q, k, v",
            Case(
                lambda rank=rank: adapted(text("llama", tied=False), rank, ["q_proj", "k_proj", "v_proj"], "CAUSAL_LM"),
                causal,
                llama,
            ),
        )
        yield (
            f"BERT, LoRA r = {rank} on query, key, value",
            Case(
                lambda rank=rank: adapted(text("bert"), rank, ["query", "key", "value"], "SEQ_CLS"),
                sequence,
                SPOKEN,
            ),
        )


def _everyday() -> Iterator[tuple[str, Case]]:
    for n in (1, 4):
        tail = "" if n == 1 else ", batch 4"
        net = lambda: mlp(144, 5)  # noqa: E731
        yield f"perceptron, classes{tail}", Case(net, classes, of(GREY, CLASSES5), n, hand=FIRST)
        yield f"perceptron, weighted classes{tail}", Case(net, weighted, of(GREY, CLASSES5), n, hand=FIRST)
        one = lambda: mlp(144, 1)  # noqa: E731
        yield f"perceptron, regression{tail}", Case(one, squares, of(GREY, lg.Values()), n, hand=FIRST)
        yield f"perceptron, one logit{tail}", Case(one, one_logit, of(GREY, lg.Labels(1)), n, hand=FIRST)
        yield (
            f"perceptron, six labels{tail}",
            Case(lambda: mlp(144, 6), several, of(GREY, lg.Labels(6)), n, hand=FIRST),
        )
        yield (
            f"perceptron, three values, Huber{tail}",
            Case(lambda: mlp(144, 3), huber, of(GREY, lg.Values(3)), n, hand=FIRST),
        )
        yield (
            f"table of numbers, one logit{tail}",
            Case(lambda: mlp(10, 1), one_logit, of(NUMBERS, lg.Labels(1)), n, hand=FIRST),
        )
        yield f"autoencoder{tail}", Case(lambda: mlp(144, 144), same_again, {"x": GREY}, n, hand=FIRST)
        yield (
            f"table with categories, one logit{tail}",
            Case(
                lambda: Entities(1),
                entities,
                {"numbers": lg.Numbers(5, 0.0, 100.0), "kinds": lg.Categories((7, 12, 3)), "y": lg.Labels(1)},
                n,
            ),
        )
    yield "table of numbers, survival, batch 8", Case(lambda: mlp(10, 1), survival, of(NUMBERS, lg.TimeToEvent()), 8)
    yield "a dict as answer, batch 2", Case(lambda: Answering(mlp(144, 5)), answered, of(GREY, CLASSES5), 2)
    yield "DataParallel", Case(lambda: nn.DataParallel(mlp(144, 5)), classes, of(GREY, CLASSES5), 2)
    yield "bfloat16", Case(lambda: mlp(144, 5).bfloat16(), classes, of(GREY, CLASSES5), 1)
    yield "LSTM, one logit", Case(lambda: Series(nn.LSTM, 1), one_logit, of(VITALS, lg.Labels(1)), evaluations=MANY)
    yield "LSTM, regression", Case(lambda: Series(nn.LSTM, 1), squares, of(VITALS, lg.Values()), evaluations=MANY)
    yield (
        "GRU, one logit, batch 2",
        Case(lambda: Series(nn.GRU, 1), one_logit, of(VITALS, lg.Labels(1)), 2, evaluations=MANY),
    )
    yield (
        "LeNet, six labels",
        Case(lambda: lg.models.lenet(classes=6), several, of(lg.Image((3, 32, 32)), lg.Labels(6))),
    )
    yield (
        "ResNet-18 of width 16, regression",
        Case(lambda: lg.models.resnet18(classes=1, width=16), squares, of(lg.Image((3, 32, 32)), lg.Values())),
    )
    yield "perceptron, one step of FedAvg, batch 4", Case(lambda: mlp(144, 5), classes, of(GREY, CLASSES5), 4, ONE_STEP)
    yield (
        "perceptron, regression, one step of FedAvg, batch 4",
        Case(lambda: mlp(144, 1), squares, of(GREY, lg.Values()), 4, ONE_STEP),
    )
    yield "perceptron, one step of Adam, batch 4", Case(lambda: mlp(144, 5), classes, of(GREY, CLASSES5), 4, ADAM)
    yield (
        "perceptron, momentum, two epochs, batch 4",
        Case(lambda: mlp(144, 5), classes, of(GREY, CLASSES5), 4, MOMENTUM),
    )


def _hospital() -> Iterator[tuple[str, Case]]:
    yield "U-Net, Dice + CE", Case(unet, masked, of(GREY, lg.Mask(2, (12, 12))))
    yield "U-Net, Dice + CE, batch 2", Case(unet, masked, of(GREY, lg.Mask(2, (12, 12))), 2)
    yield "U-Net, one class by logits", Case(lambda: unet(1, 1), two_sided, of(GREY, lg.Mask(1, (12, 12))))
    yield (
        "MONAI UNet in 2D, Dice + CE",
        Case(lambda: monai("unet"), masked, of(lg.Image((1, 16, 16)), lg.Mask(2, (16, 16)))),
    )
    yield "MONAI UNet in 3D, Dice + CE", Case(lambda: monai("unet3d"), masked, of(VOLUME, lg.Mask(2, (16, 16, 16))))
    yield "MONAI UNet in 3D, train mode, Adam, two volumes", Case(
        lambda: monai("unet3d"), masked, of(VOLUME, lg.Mask(2, (16, 16, 16))), 2,
        {"local-training": {"optimiser": {"adam": {"lr": 0.001}}, "epochs": 2, "batch_size": 1}}, mode="train",
    )  # fmt: skip
    yield "MONAI SegResNet, Dice + CE", Case(lambda: monai("segresnet"), masked, of(VOLUME, lg.Mask(2, (16, 16, 16))))
    yield "MONAI UNETR, Dice + CE", Case(lambda: monai("unetr"), masked, of(VOLUME, lg.Mask(2, (16, 16, 16))))
    yield (
        "MONAI ViT in 3D, classes",
        Case(lambda: monai("vit3d"), lambda m, b: F.cross_entropy(m(b["x"])[0], b["y"]), of(VOLUME, lg.Classes(3))),
    )
    yield (
        "MONAI DenseNet, six labels",
        Case(lambda: monai("densenet"), several, of(lg.Image((1, 32, 32)), lg.Labels(6))),
    )
    yield "Hugging Face ConvNeXt, classes", Case(lambda: vit("convnext"), own_loss, of(PICTURE, CLASSES5))
    yield "Hugging Face ResNet, classes", Case(lambda: vit("resnet"), own_loss, of(lg.Image((3, 32, 32)), CLASSES5))


class Temporal(nn.Module):
    """Convolutions over time, as wearables have them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(6, 24, 3, padding=1), nn.GELU(), nn.Conv1d(24, 24, 3, 2, 1), nn.GELU())
        self.head = nn.Linear(24 * 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]


class Attending(nn.Module):
    """A transformer encoder on vital signs."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.up, self.body = nn.Linear(6, 32), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.places, self.head = nn.Parameter(torch.randn(12, 32) / 10), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.up(x.transpose(1, 2)) + self.places).mean(1))  # type: ignore[no-any-return]


def credit() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )


def further(kind: str) -> nn.Module:
    """Networks that no method was tried on before their rows."""
    import transformers as hf
    from monai.networks import nets

    small = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    causal_ = small | {"intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 32}
    if kind == "electra":
        return hf.ElectraForSequenceClassification(
            hf.ElectraConfig(
                **small, embedding_size=64, intermediate_size=128, max_position_embeddings=32, num_labels=3
            )
        )
    if kind == "opt":
        sizes = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        return hf.OPTForCausalLM(
            hf.OPTConfig(**sizes, ffn_dim=128, word_embed_proj_dim=64, max_position_embeddings=32, dropout=0.0)
        )
    if kind == "mistral":
        return hf.MistralForCausalLM(hf.MistralConfig(**causal_))
    if kind == "qwen2":
        return hf.Qwen2ForCausalLM(hf.Qwen2Config(**causal_))
    if kind == "bart":
        return hf.BartForConditionalGeneration(
            hf.BartConfig(
                vocab_size=500, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=32,
                dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
                forced_eos_token_id=2,
            )
        )  # fmt: skip
    if kind == "swin":
        return hf.SwinForImageClassification(
            hf.SwinConfig(image_size=16, patch_size=2, embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=4,
                          drop_path_rate=0.0, num_labels=5)
        )  # fmt: skip
    if kind == "segformer":
        return hf.SegformerForSemanticSegmentation(
            hf.SegformerConfig(
                num_encoder_blocks=2, depths=[1, 1], sr_ratios=[1, 1], hidden_sizes=[32, 64], patch_sizes=[3, 3],
                strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=32, num_labels=3,
                drop_path_rate=0.0, classifier_dropout_prob=0.0,
            )
        )  # fmt: skip
    if kind == "mobilenet":
        return hf.MobileNetV2ForImageClassification(
            hf.MobileNetV2Config(image_size=32, depth_multiplier=0.35, num_labels=5)
        )
    if kind == "basic":
        return nets.BasicUNet(2, 1, 2, features=(16, 16, 32, 32, 32, 16))
    if kind == "attention":
        return nets.AttentionUnet(3, 1, 2, channels=(8, 16), strides=(2,))
    return nets.VNet(3, 1, 2, dropout_prob_down=0.0, dropout_prob_up=(0.0, 0.0))


def _resized(m: nn.Module, b: Batch) -> Tensor:
    z = m(pixel_values=b["x"]).logits
    return losses.places(F.interpolate(z, b["y"].shape[1:], mode="bilinear"), b["y"])


def counts(m: nn.Module, b: Batch) -> Tensor:
    return F.poisson_nll_loss(m(b["x"])[:, 0], b["y"])


def _held_out() -> Iterator[tuple[str, Case]]:
    texts, two = {"text": TEXT}, {"fedavg": {"epochs": 2, "lr": 0.05}}
    masks = lg.Mask(2, (16, 16, 16))
    yield "ELECTRA, classes", Case(lambda: further("electra"), sequence, SPOKEN)
    yield "OPT, own loss", Case(lambda: further("opt"), causal, texts)
    yield "Mistral, own loss, batch 2", Case(lambda: further("mistral"), causal, texts, 2)
    yield (
        "Qwen2, LoRA r = 16 on q, k, v",
        Case(lambda: adapted(further("qwen2"), 16, ["q_proj", "k_proj", "v_proj"], "CAUSAL_LM"), causal, texts),
    )
    yield "BART, text to text", Case(lambda: further("bart"), translated, texts | {"y": lg.NextToken(500, 6)})
    yield "Swin, classes", Case(lambda: further("swin"), own_loss, of(PICTURE, CLASSES5))
    yield (
        "SegFormer, cross-entropy of places",
        Case(lambda: further("segformer"), _resized, of(PICTURE, lg.Mask(3, (16, 16)))),
    )
    yield "MobileNetV2, classes", Case(lambda: further("mobilenet"), own_loss, of(lg.Image((3, 32, 32)), CLASSES5))
    yield (
        "MONAI BasicUNet, Dice + CE, batch 2",
        Case(lambda: further("basic"), masked, of(lg.Image((1, 32, 32)), lg.Mask(2, (32, 32))), 2),
    )
    yield (
        "MONAI AttentionUnet in 3D, Dice + CE, two steps",
        Case(lambda: further("attention"), masked, of(VOLUME, masks), 1, two),
    )
    yield "MONAI VNet in 3D, Dice + CE", Case(lambda: further("vnet"), masked, of(VOLUME, masks))
    yield "credit table with BatchNorm, one logit, batch 4", Case(credit, one_logit, of(NUMBERS, lg.Labels(1)), 4)
    yield (
        "credit table with BatchNorm, one logit, two steps, batch 4",
        Case(credit, one_logit, of(NUMBERS, lg.Labels(1)), 4, two),
    )
    yield "convolutions over time, regression", Case(Temporal, squares, of(VITALS, lg.Values()), evaluations=MANY)
    yield (
        "transformer on vital signs, one logit",
        Case(Attending, one_logit, of(VITALS, lg.Labels(1)), evaluations=MANY),
    )
    yield (
        "table of numbers, counts (Poisson), batch 4",
        Case(lambda: mlp(10, 1), counts, of(NUMBERS, lg.Values(1, 0, 9)), 4, hand=FIRST),
    )
    yield (
        "table with categories, regression, batch 6",
        Case(
            lambda: Entities(1),
            lambda m, b: F.mse_loss(m(b["numbers"], b["kinds"])[:, 0], b["y"]),
            {"numbers": lg.Numbers(5, 0.0, 100.0), "kinds": lg.Categories((7, 12, 3)), "y": lg.Values()},
            6,
        ),
    )


CASES: dict[str, Case] = dict([*_everyday(), *_vits(), *_texts(), *_hospital()])
HELD_OUT: dict[str, Case] = dict(_held_out())

# Scores.


def likeness(read: Tensor, true: Tensor, spec: BatchPart) -> str:
    """What was read of a part, one to one, in the unit of its kind."""
    if isinstance(spec, lg.DataSpec) and spec.vocabulary:
        if read.ndim == 1:
            inside = set(read.tolist()) & set(true.flatten().tolist())
            return (
                f"{len(inside)} of {len(set(true.flatten().tolist()))} tokens, {len(set(read.tolist()) - inside)} wrong"
            )
        right = (read[:, None] == true[None]).sum(2)
        i, j = linear_sum_assignment(-right.numpy())
        return f"{int(right[i, j].sum())} of {true.numel()} tokens in place"
    low, high = (torch.tensor(e, dtype=torch.float64) for e in spec.edges)
    wide = (high - low).expand(1) if len(high) == 1 else high - low
    by_column = isinstance(spec, lg.Numbers | lg.Categories | lg.Values) and len(wide) > 1
    scale = wide if by_column else wide[:1]
    if read.ndim == 1:
        read, true = read[:, None], true[:, None]
    a, b = read.detach().double().flatten(1) / scale, true.double().flatten(1) / scale
    if a.shape[1] != b.shape[1]:
        return f"of another shape: {tuple(read.shape)}"
    decibels = -10 * torch.log10(((a[:, None] - b[None]) ** 2).mean(2).clamp_min(1e-18))
    i, j = linear_sum_assignment(-decibels.numpy())
    found = sorted((float(decibels[x, y]) for x, y in zip(i, j, strict=True)), reverse=True)
    exact = sum(x >= EXACT for x in found)
    return f"{exact} of {len(true)} exact ({', '.join(f'{x:.0f}' for x in found)} dB)"


def secrets(parts: Mapping[str, Any]) -> Mapping[str, BatchPart]:
    return {name: spec for name, spec in parts.items() if isinstance(spec, BatchPart)}


def drawn(case: Case, seed: int) -> Batch:
    """A batch of made-up examples in each part's range, smooth where they are pictures."""
    generator = torch.Generator().manual_seed(seed)
    batch = {}
    for name, spec in secrets(case.parts).items():
        made = spec.made_up(case.n, generator)
        if isinstance(spec, lg.DataSpec) and not spec.vocabulary and made.ndim in (4, 5):
            pool = F.avg_pool2d if made.ndim == 4 else F.avg_pool3d
            made = pool(made, 3, stride=1, padding=1, count_include_pad=False)
            low, high = made.amin(), made.amax()
            made = (made - low) / (high - low)
        batch[name] = made
    return batch


def made(name: str, seed: int) -> tuple[nn.Module, lg.Task]:
    """A case's network, as its user has it, and the training step."""
    torch.manual_seed(seed)
    case = (CASES | HELD_OUT)[name]
    net = case.net()
    net.train(case.mode == "train")
    return net, lg.Task.of_step(net, case.loss, dict(case.parts), mode=case.mode)


def step(*, case: str, seed: int = 0) -> lg.Task:
    """The training step of a case, as a plan names it."""
    return made(case, seed)[1]


# Ways in.

WAYS = ("attack", "audit", "plan", "captured")
OTHERS = 64
"""Other clients' examples, which audits compare reads with."""


def attacked(name: str, case: Case, batch: Batch, others: Batch, *, seed: int, evaluations: int) -> dict[str, Any]:
    """By `lg.attack`, and by hand."""
    net, task = made(name, seed)
    update = lg.clients.client_update(task, case.protocol, batch, lg.Draws(seed))
    none = lg.defenses.NoDefense()
    knows = lg.Knowledge(example_count=case.n, local_training=case.protocol, defense=none)
    began = time.process_time()
    found = lg.attack(task, update, knows=knows, budget=lg.Budget(gradient_evaluations=evaluations))
    row: dict[str, Any] = {"seconds": round(time.process_time() - began, 1), "status": found.status.name}
    row |= {"message": found.message, "tried": [str(t) for t in found.tried]}
    row["certified"] = None if found.certified is None else int(found.certified.sum())
    specs = secrets(case.parts)
    read = {k: likeness(found.parts[k], batch[k], s) for k, s in specs.items() if k in found.parts}
    if found.tokens is not None:
        text = next(k for k, s in specs.items() if isinstance(s, lg.DataSpec) and s.vocabulary)
        occur = found.tokens.counts.sum(0).nonzero().flatten() if found.tokens.order is None else found.tokens.order
        read[text] = likeness(occur, batch[text], specs[text])
    row["read"] = read | {f"share of {k}": [round(float(s), 4) for s in v] for k, v in found.shares.items()}
    if case.hand is not None:
        by_hand = case.hand(net, {k: v.float() for k, v in update.tensors.items()}, case.parts)
        row["hand"] = {k: likeness(v, batch[k], specs[k]) for k, v in by_hand.items()}
    strangers = task.layout.batch(others)
    usual = torch.full((task.data.classes,), 1 / task.data.classes)
    truth = Truth(task.layout.batch(batch), strangers.inputs, strangers.inputs, (), usual)
    whole = evaluate_texts if task.data.is_text else evaluate
    scored = evaluate_parts(found, truth, task, strangers, whole, labels_known=False)
    tokens = None if scored.tokens is None else vars(scored.tokens)
    return row | _scores([vars(p) for p in scored.parts], tokens)


def audited(
    name: str, case: Case, batch: Batch, others: Batch, *, way: str, seed: int, evaluations: int
) -> dict[str, Any]:
    """By an audit that is called, of a plan's file, or of a captured round's folder; its report."""
    every = {k: torch.cat([v, others[k]]) for k, v in batch.items()}
    model = {"brought:step": {"case": name, "seed": seed}}
    plan: dict[str, Any] = {"mode": case.mode, "budget": {"gradient_evaluations": evaluations}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, out = f"parts:{folder / 'parts.npz'}", folder / "out"
        np.savez(folder / "parts.npz", **{k: v.numpy() for k, v in every.items()})
        if way == "audit":
            client = [case.protocol]
            lg.audit(made(name, seed)[1], every, batch=case.n, batches=1, clients=client, folder=out, **plan)
            said = ""
        else:
            if way == "plan":
                data = {"source": source, "batch": case.n, "batches": 1}
                plan |= {"model": model, "data": data, "clients": [case.client]}
                (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
                words = ["audit", f"{folder / 'plan.yaml'}", "--workers", "1"]
            else:
                words = ["captured", f"{captured(name, case, batch, others, folder, seed)}", "--workers", "1"]
                words += ["--model", json.dumps(model), "--client", json.dumps(case.client)]
                words += ["--mode", case.mode, "--evaluations", str(evaluations)]
                words += [] if alone(case) else ["--data", source]
            said = CliRunner().invoke(command, [*words, "-o", f"{out}"]).output
        if not (out / "report.json").exists():
            raise RuntimeError(said)
        report = json.loads((out / "report.json").read_text())
    (trial,) = (t for t in report["trials"] if not t["control"])
    row = {
        "seconds": round(trial["cost"]["seconds"], 1),
        "status": trial["status"].upper(),
        "message": trial["message"],
    }
    return row | {"verdict": report["verdict"]["headline"]} | _scores(trial["parts"], trial.get("tokens"))


def alone(case: Case) -> bool:
    """Whether a step has one input and one target, which a capture keeps."""
    return sorted(isinstance(p, Target) for p in secrets(case.parts).values()) == [False, True]


def captured(name: str, case: Case, batch: Batch, others: Batch, folder: Path, seed: int) -> Path:
    """A round as it is captured where clients reply with their parameters, or with a gradient; beside it another's."""
    (net, task), protocol = made(name, seed), case.protocol
    update = lg.clients.client_update(task, protocol, batch, lg.Draws(seed))
    before, own = net.state_dict(), dict(net.named_parameters())
    moved = {k if k in own else f"module.{k}": v for k, v in update.tensors.items()}
    gradient = protocol.kind is lg.UpdateKind.GRADIENT
    reply = moved if gradient else {k: v + moved[k] if k in moved else v for k, v in before.items()}
    rounds = []
    for number, values in enumerate((batch, others)):
        examples, given, at = RoundExamples(), list(task.layout.given(task.layout.batch(values)).values()), 0
        count = len(given[0])
        for size in protocol.parts(count) if alone(case) else ():
            examples.add(*(v[at : at + size] for v in given))
            at = (at + size) % count
        recorder = Recorder(folder=folder / "rounds", sends=protocol.kind if gradient else None)
        known = {"round_": str(number), "node": str(number), "count": count}
        rounds.append(recorder.keep(before, reply, examples=examples, **known))
    return rounds[0]


def _scores(parts: list[dict[str, Any]], tokens: dict[str, Any] | None) -> dict[str, Any]:
    """What an audit says of each part, example by example."""
    return {"parts": {p["name"]: [p["measure"], *p["values"]] for p in parts}, "tokens": tokens}


def run(name: str, case: Case, *, way: str, seed: int, evaluations: int) -> dict[str, Any]:
    """One row. What goes wrong is one too."""
    began = time.process_time()
    row: dict[str, Any] = {"case": name, "held_out": name in HELD_OUT, "way": way, "n": case.n, "seed": seed}
    row |= {"evaluations": evaluations}
    go = attacked if way == "attack" else partial(audited, way=way)
    try:
        others = drawn(replace(case, n=OTHERS), seed + 1)
        row |= go(name, case, drawn(case, seed), others, seed=seed, evaluations=evaluations)
    except Exception as error:  # noqa: BLE001 (what breaks is a row)
        row |= {"status": "RAISED", "message": f"{type(error).__name__}: {error}"[:500]}
    return row | {"all_seconds": round(time.process_time() - began, 1)}


ROWS = Path(__file__).parent / "results" / "brought.jsonl"


def _cell(read: Mapping[str, str] | None, *, shares: bool = False) -> str:
    inside = {k: v for k, v in (read or {}).items() if shares or not k.startswith("share of")}
    return "; ".join(f"`{k}` {v}" for k, v in inside.items()).replace("|", "/") or "–"


def exact(row: Mapping[str, Any]) -> dict[str, int]:
    """How many examples are exact in each part, as an audit scores them; 1 for texts whose set of tokens is."""
    near = 10 ** (-EXACT / 20)
    found = {
        k: sum(v is not None and (v == 1 if measure == "equal" else v <= near) for v in values)
        for k, (measure, *values) in row.get("parts", {}).items()
    }
    return found | {"set of tokens": int(row["tokens"]["exact_set"]) if row.get("tokens") else 0}


def beside(row: Mapping[str, Any], others: list[dict[str, Any]]) -> str:
    """What other ways in give: the same, or how many examples of a part are exact."""
    here, told = exact(row), dict[str, list[str]]()
    for other in others:
        there = exact(other)
        differing = ", ".join(f"`{k}` {there.get(k, 0)} exact" for k in here if here[k] != there.get(k, 0))
        told.setdefault("raised" if other["status"] == "RAISED" else differing or "same", []).append(other["way"])
    return "; ".join(f"{', '.join(ways)}: {what}" for what, ways in told.items()) or "–"


def page(rows: list[dict[str, Any]]) -> str:
    """The table of the docs: every row, of the cases first."""
    said = []
    for title, held_out in (("Cases", False), ("Held out", True)):
        said += [f"## {title}", "", "| network, target | client | attack | by hand | CPU s | other ways in |"]
        said += ["|---|---|---|---|---|---|"]
        for row in (r for r in rows if r["held_out"] is held_out and r["way"] == "attack"):
            client = "FedSGD" if (CASES | HELD_OUT)[row["case"]].client == {"fedsgd": {}} else "local steps"
            read = row["status"].lower() if row["status"] in ("RAISED", "STOPPED") else _cell(row.get("read"))
            proved = "**proved** " if row["status"] == "EXACT" else ""
            others = [r for r in rows if r["case"] == row["case"] and r["way"] != "attack"]
            cells = (row["case"], client, proved + read, _cell(row.get("hand")), str(row.get("seconds", "–")))
            said.append(f"| {' | '.join(cells)} | {beside(row, others)} |")
        said.append("")
    return "\n".join(said)


def kept(path: Path = ROWS) -> list[dict[str, Any]]:
    """Rows of a file; none where there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROWS)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--way", default="", help="of the ways in, those whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print(page(kept(options.out)))
        return
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    there = {(row["case"], row["way"], row["seed"]) for row in kept(options.out)}
    for (name, case), way in itertools.product((CASES | HELD_OUT).items(), WAYS):
        if options.only in name and options.way in way and (name, way, options.seed) not in there:
            with warnings.catch_warnings(), contextlib.redirect_stderr(None):
                warnings.simplefilter("ignore")
                spent = case.evaluations or options.evaluations
                row = run(name, case, way=way, seed=options.seed, evaluations=spent)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(name, way, row["status"], row.get("parts"), "|", row["message"][:150], row["all_seconds"], flush=True)


if __name__ == "__main__":
    main()
