"""The memory of a recurrent network: one LSTM layer (Hochreiter & Schmidhuber, 1997) after the hidden layers."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

# On CUDA an LSTM's weights are copied into cuDNN's own order at each call, since they live in the flat vector of all
# parameters; the copy is small, and torch's advice to undo that would take them out of the optimizer's sight.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


class Memory(nn.Module):
    """Runs over sequences; a memory is [h, c] end to end, half of `memory_size` each.

    Args:
        inputs: width of its input.
        memory_size: m, even; half of it is the width of the output.
    """

    def __init__(self, inputs: int, memory_size: int) -> None:
        super().__init__()
        self.size = memory_size // 2
        self.lstm = nn.LSTM(inputs, self.size, batch_first=True)
        for name, parameter in self.lstm.named_parameters():
            gates = parameter.detach().chunk(4)  # input, forget, cell, output
            if name.startswith("weight"):
                for gate in gates:
                    nn.init.xavier_uniform_(gate)
            else:
                parameter.detach().zero_()
                gates[1].fill_(1.0)  # on both biases, as in ML-Agents: memories stay at first

    def forward(self, features: Tensor, memories: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
        """Run B / L sequences of L rows each, which lie end to end.

        Args:
            features: [B, inputs]
            memories: [B / L, m] before the first row of each sequence; None for zeros.
            length: L.

        Returns:
            [B, m / 2], and the memories [B / L, m] after the last row of each sequence.
        """
        sequences = features.view(len(features) // length, length, features.shape[1])
        if memories is None:
            outputs, (h, c) = self.lstm(sequences)
        else:
            before = memories.unsqueeze(0)
            h, c = before[..., : self.size].contiguous(), before[..., self.size :].contiguous()
            outputs, (h, c) = self.lstm(sequences, (h, c))
        return outputs.reshape(-1, self.size), torch.cat((h, c), dim=2).squeeze(0)
