"""A hospital's segmentation client in Flower: MONAI's 3D U-Net with BatchNorm, Dice + CE, Adam over local epochs.

Needs monai and leakgauge[flower]. ``flwr run . --run-config 'captures="/path"'`` captures each round; then, here,
``leakgauge captured /path/round-1-node-…-server --model app:task --client CLIENT`` audits one, with

    CLIENT='{local-training: {optimiser: {adam: {lr: 0.001}}, epochs: 2, batch_size: 1}}'
"""

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from torch import nn

import leakgauge as lg
from leakgauge.flower import CaptureMod, CaptureStrategy

SIDE = 16  # of a volume; hospitals have 64 to 128
criterion = DiceCELoss(to_onehot_y=True, softmax=True)


def net() -> nn.Module:
    """Of two classes: background and lesion."""
    return UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), norm="batch")


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the client minimises."""
    return criterion(model(batch["scan"]), batch["mask"][:, None])


def task() -> lg.Task:
    """The training step, for audits."""
    torch.manual_seed(0)
    places = (SIDE, SIDE, SIDE)
    parts = {"scan": lg.Volume((1, *places)), "mask": lg.Mask(2, places)}
    return lg.Task.of_step(net(), loss, parts, mode="train", name="segmentation")


def patients(first: int, count: int) -> dict[str, torch.Tensor]:
    """Made up: smooth tissue from 0 to 1, and a brighter ball in it, which the mask names."""
    scans, masks = [], []
    grid = torch.stack(torch.meshgrid(*[torch.arange(float(SIDE))] * 3, indexing="ij"))
    for number in range(first, first + count):
        g = torch.Generator().manual_seed(number)
        tissue = F.interpolate(torch.rand(1, 1, 4, 4, 4, generator=g), size=SIDE, mode="trilinear")[0, 0]
        centre = SIDE * (0.3 + 0.4 * torch.rand(3, 1, 1, 1, generator=g))
        ball = (grid - centre).norm(dim=0) < SIDE / 8 * (1 + torch.rand(1, generator=g))
        scans.append(0.7 * tissue + 0.3 * ball)
        masks.append(ball.long())
    return {"scan": torch.stack(scans)[:, None], "mask": torch.stack(masks)}


app = ClientApp(mods=[CaptureMod(examples=True)])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Local epochs of Adam; what travels is the whole state, with the running statistics."""
    run, partition = context.run_config, int(context.node_config["partition-id"])
    held = patients(partition * int(run["volumes"]), int(run["volumes"]))
    model = net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=float(run["lr"]))
    for _ in range(int(run["epochs"])):
        for x, y in zip(held["scan"].split(1), held["mask"].split(1), strict=True):
            optimizer.zero_grad()
            loss(model, {"scan": x, "mask": y}).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(held["scan"])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Rounds of FedAvg."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    strategy = CaptureStrategy(strategy, context.run_config["captures"])
    arrays, rounds = ArrayRecord(net().state_dict()), int(context.run_config["rounds"])
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
