"""A photo read back out of one gradient, and an audit of two more: the README's example."""

import torch
from matplotlib import pyplot as plt

import leakgauge as lg

torch.manual_seed(0)
photos = lg.data.Samples(size=32)
batch = photos.read([2])  # the client's secret: a cup of coffee
task = lg.Task.of(lg.models.lenet(classes=photos.classes), lg.data.spec(photos))
update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(seed=1))

found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=400))
mates = lg.metrics.assign(found.inputs, batch.inputs)
print(found.status, found.labels, f"{float(lg.metrics.PSNR()(mates.take(found.inputs), batch.inputs)):.0f} dB")
plt.imsave("first-picture.png", torch.cat([batch.inputs, found.inputs.clamp(0, 1)], 3)[0].permute(1, 2, 0).numpy())

audit = lg.audit(task.module, photos, batches=2, attacks=["closed-form", "inverting-gradients"], budget=lg.Budget(60))
print(*audit.verdict.headline, sep="\n")
