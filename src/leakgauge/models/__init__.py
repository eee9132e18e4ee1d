"""Networks of the papers, by name."""

from leakgauge.models.networks import convnet, lenet, mlp, of_parts, resnet18, resnet20, small_convnet, vgg, vgg16

__all__ = ["convnet", "lenet", "mlp", "of_parts", "resnet18", "resnet20", "small_convnet", "vgg", "vgg16"]
