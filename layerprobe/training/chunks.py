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
    normalises each chunk by itself. The second forward draws the random numbers of the first one again, and the
    network's buffers, such as running statistics, stay as the first one has left them.

    Args:
        module: the network whose buffers a forward may change.
        embed: images (n, ...) -> their embeddings (n, D).
        chunks: the images of the batch in their order.
    """

    def __init__(self, module: nn.Module, embed: Callable[[Tensor], Tensor], chunks: Sequence[Tensor]) -> None:
        self._module, self._embed, self._chunks = module, embed, chunks
        self._device = next(module.parameters()).device
        self._states = list[list[Tensor]]()  # of the random generators before each chunk
        embeddings = list[Tensor]()
        with torch.no_grad():
            for chunk in chunks:
                self._states.append(_random_states(self._device))
                embeddings.append(embed(chunk))
        self._sizes = [len(part) for part in embeddings]
        self.embeddings = torch.cat(embeddings).requires_grad_()

    def backward(self) -> None:
        """Add the gradient of the network's parameters, from that which the loss has left at `embeddings`."""
        gradient = self.embeddings.grad
        if gradient is None or not any(parameter.requires_grad for parameter in self._module.parameters()):
            return
        buffers = [buffer.clone() for buffer in self._module.buffers()]
        after = _random_states(self._device)  # the loss may have drawn, too
        for chunk, states, part in zip(self._chunks, self._states, gradient.split(self._sizes), strict=True):
            _set_random_states(states, self._device)
            self._embed(chunk).backward(part)
        _set_random_states(after, self._device)
        with torch.no_grad():
            for buffer, value in zip(self._module.buffers(), buffers, strict=True):
                buffer.copy_(value)


def _random_states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
