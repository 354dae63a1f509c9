"""A batch whose images are forwarded in chunks: the loss sees all of it, memory holds one chunk's activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class ChunkedBatch:
    """The embeddings of a batch, and the way of their gradient back through the network, chunk by chunk.

    Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup, RepL4NLP 2021:
    the embeddings are computed without a graph, the loss gives its gradient with respect to them, and each chunk is
    forwarded again to pass its part of this gradient on. It is the gradient of the whole batch, except that BatchNorm
    normalises each chunk by itself, and that buffers which a forward changes, such as running statistics, change with
    each chunk. The second forward begins with the buffers of the first one, draws torch's random numbers again, and
    leaves the buffers as the first one has left them.

    Args:
        module: the network whose buffers a forward may change.
        embed: images (n, ...) -> their embeddings (n, D).
        chunks: the images of the batch in their order.
    """

    def __init__(self, module: nn.Module, embed: Callable[[Tensor], Tensor], chunks: Sequence[Tensor]) -> None:
        self._module, self._embed, self._chunks = module, embed, chunks
        self._device = next(module.parameters()).device
        self._states = list[list[Tensor]]()  # of the random generators before each chunk
        self._buffers = list[list[Tensor]]()  # of the network before each chunk
        embeddings = list[Tensor]()
        with torch.no_grad():
            for chunk in chunks:
                self._states.append(_random_states(self._device))
                self._buffers.append(self._copied_buffers())
                embeddings.append(embed(chunk))
        self._sizes = [len(part) for part in embeddings]
        self.embeddings = torch.cat(embeddings).requires_grad_()

    def backward(self) -> None:
        """Add the gradient of the network's parameters, from that which the loss has left at `embeddings`."""
        gradient = self.embeddings.grad
        if gradient is None or not any(parameter.requires_grad for parameter in self._module.parameters()):
            return
        buffers, after = self._copied_buffers(), _random_states(self._device)  # the loss may have drawn, too
        parts = gradient.split(self._sizes)
        for chunk, states, before, part in zip(self._chunks, self._states, self._buffers, parts, strict=True):
            _set_random_states(states, self._device)
            self._set_buffers(before)
            self._embed(chunk).backward(part)
        _set_random_states(after, self._device)
        self._set_buffers(buffers)

    def _copied_buffers(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self._module.buffers()]

    def _set_buffers(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for buffer, value in zip(self._module.buffers(), values, strict=True):
                buffer.copy_(value)


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    elif device.type == "mps":
        states.append(torch.mps.get_rng_state())
    return states


def _set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states[1])
