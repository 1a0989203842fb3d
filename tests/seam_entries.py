"""What entries of tables name in `test_seams`: an encoder of images, and a kind of observation with its encoder."""

from __future__ import annotations

import torch
from torch import nn


def thin(channels):
    """Layers of an image encoder, one of which the writer of the built-in ones does not know."""
    return nn.Sequential(nn.Conv2d(channels, 2, 3, 2), nn.Softplus())


def write_thin(graph, layers, image):
    convolution, _ = layers
    value = graph.node(
        "Conv",
        image,
        graph.constant(convolution.weight.detach().numpy()),
        graph.constant(convolution.bias.detach().numpy()),
        kernel_shape=[3, 3],
        strides=[2, 2],
    )
    return graph.node("Softplus", value)


class ClipEncoder(nn.Module):
    """Clips of pictures [frames, channels, height, width], each to 4 numbers by way of its mean over frames."""

    goals = ()

    def __init__(self, observations, design, beside):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(one.size // one.shape[0], 4) for one in observations)
        self.size = 4 * len(observations)

    def forward(self, observations, beside):
        return [
            torch.tanh(linear(clip.float().mean(dim=1).flatten(1)))
            for linear, clip in zip(self.linears, observations, strict=True)
        ]


def write_clips(graph, encoder, clips, shapes, beside):
    return [
        graph.node(
            "Tanh",
            graph.node(
                "Gemm",
                graph.node("Flatten", graph.node("ReduceMean", clip, axes=[1], keepdims=0), axis=1),
                graph.constant(linear.weight.detach().numpy()),
                graph.constant(linear.bias.detach().numpy()),
                transB=1,
            ),
        )
        for linear, clip in zip(encoder.linears, clips, strict=True)
    ]
