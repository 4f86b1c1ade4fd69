"""Layers for C clients at once, each with its own weights: what a layer computes, and its gradients client by client.

Samples lie client by client along the first axis, (C B, ...). A parameter has a leading client axis, (C, ...), of
stride zero where all clients have the same one. Backward passes write every client's gradient to its place in a matrix
(C, d), so that autograd never sees a weight. Matrix products are batched and never joined over clients, which keeps a
client's numbers the same to the last bit whoever computes beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass
class Slot:
    """A parameter of C clients and where its gradient goes."""

    value: Tensor  # (C, *shape)
    gradient: Tensor | None  # (C, *shape), zero before a pass; None where the parameter is frozen

    def part(self, rows: slice) -> Slot:
        """Some rows of the parameter."""
        return Slot(self.value[:, rows], None if self.gradient is None else self.gradient[:, rows])


@dataclass
class Pass:
    """What all layers of a pass share."""

    clients: int = 1
    anchor: Tensor = field(default_factory=lambda: torch.zeros(1, requires_grad=True))  # keeps layers in the graph
    written: set[int] = field(default_factory=set)  # offsets of gradients, for layers that are used twice

    def write(self, slot: Slot | None, compute: Callable[[], Tensor]) -> None:
        """Put a gradient into its place, or add it to what an earlier use of the layer put there."""
        if slot is None or slot.gradient is None:
            return
        place = slot.gradient
        if place.storage_offset() in self.written:
            place.add_(compute().view(place.shape))
        else:
            place.copy_(compute().view(place.shape))
        self.written.add(int(place.storage_offset()))

    def multiply(self, slot: Slot, left: Tensor, right: Tensor) -> None:
        """`write` for a product of matrices (C, rows, inner) (C, inner, columns), in place if it is the first."""
        place = slot.gradient
        if place is None:
            return
        if place.storage_offset() in self.written:
            place.add_(torch.bmm(left, right))
        else:
            torch.bmm(left, right, out=place)
        self.written.add(int(place.storage_offset()))


class _Dense(torch.autograd.Function):
    """y = x W' + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, now: Pass, weight: Slot, bias: Slot | None) -> Tensor:
        """x (C, rows, in) -> (C, rows, out)."""
        ctx.save_for_backward(x)
        ctx.rest = now, weight, bias
        turned = weight.value.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.value.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """The slope at x; each client's gradient of W is slope' x."""
        (x,), (now, weight, bias) = ctx.saved_tensors, ctx.rest
        now.multiply(weight, slope.transpose(1, 2), x)
        now.write(bias, lambda: slope.sum(1))
        return torch.bmm(slope, weight.value) if ctx.needs_input_grad[0] else None, None, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution for each client: one in groups, over the clients' channels side by side."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, now: Pass, weight: Slot, bias: Slot | None, how: tuple[Any, ...]
    ) -> Tensor:
        """x (B, C in, ...) -> (B, C out, ...)."""
        kernels = weight.value.flatten(0, 1)
        ctx.save_for_backward(x, kernels)
        ctx.rest = now, weight, bias, how
        shift = None if bias is None else bias.value.reshape(-1)
        stride, padding, dilation, groups = how
        return torch.convolution(x, kernels, shift, stride, padding, dilation, False, (0,) * len(stride), groups)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """The slope at x; each client's gradient is that of its groups."""
        (x, kernels), (now, weight, bias, (stride, padding, dilation, groups)) = ctx.saved_tensors, ctx.rest
        wanted = [ctx.needs_input_grad[0], weight.gradient is not None, False]
        before, own, _ = torch.ops.aten.convolution_backward(
            slope, x, kernels, None, stride, padding, dilation, False, (0,) * len(stride), groups, wanted
        )
        now.write(weight, lambda: own)
        now.write(bias, lambda: slope.flatten(2).sum((0, 2)))
        return before, None, None, None, None, None


class _Affine(torch.autograd.Function):
    """y = x w + b, with w and b of some axes of a sample."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, now: Pass, weight: Slot, bias: Slot | None, axes: tuple[int, ...]
    ) -> Tensor:
        """x (C, B, ...); w and b have size one on `axes`, over which their gradients are summed."""
        ctx.save_for_backward(x)
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        ctx.rest = now, weight, bias, axes, shape
        y = x * weight.value.reshape(shape)
        return y if bias is None else y.add_(bias.value.reshape(shape))

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        """The slope at x; each client's gradients are sums over its samples."""
        (x,), (now, weight, bias, axes, shape) = ctx.saved_tensors, ctx.rest
        now.write(weight, lambda: (slope * x).sum(axes))
        now.write(bias, lambda: slope.sum(axes))
        before = slope * weight.value.reshape(shape) if ctx.needs_input_grad[0] else None
        return before, None, None, None, None, None


class _Lookup(torch.autograd.Function):
    """Rows of each client's table."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, anchor: Tensor, now: Pass, weight: Slot, padding: int | None) -> Tensor:
        """places (C, n) -> (C, n, width)."""
        ctx.save_for_backward(places)
        ctx.rest = now, weight, padding
        index = places.unsqueeze(2).expand(-1, -1, weight.value.shape[2])
        return weight.value.gather(1, index)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[None, ...]:
        """Slopes are added up at their rows, except at the row that stands for nothing."""
        (places,), (now, weight, padding) = ctx.saved_tensors, ctx.rest

        def gathered() -> Tensor:
            clients, rows, width = weight.value.shape
            first = torch.arange(clients, device=places.device).unsqueeze(1) * rows
            total = slope.new_zeros(clients * rows, width)
            total.index_add_(0, (places + first).reshape(-1), slope.reshape(-1, width))
            table = total.view(clients, rows, width)
            if padding is not None:
                table[:, padding] = 0
            return table

        now.write(weight, gathered)
        return None, None, None, None, None


Slots = dict[str, Slot]
Forward = Callable[..., Any]


def dense(x: Tensor, now: Pass, weight: Slot, bias: Slot | None) -> Tensor:
    """A linear layer: (C B, ..., in) -> (C B, ..., out)."""
    y: Tensor = _Dense.apply(x.reshape(now.clients, -1, x.shape[-1]), now.anchor, now, weight, bias)  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], y.shape[-1])


def linear(layer: nn.Linear, now: Pass, slots: Slots) -> Forward:
    """nn.Linear."""
    return lambda x: dense(x, now, slots["weight"], slots.get("bias"))


def convolution(layer: nn.Conv1d | nn.Conv2d, now: Pass, slots: Slots) -> Forward:
    """nn.Conv1d, nn.Conv2d."""

    def forward(x: Tensor) -> Tensor:
        clients, batch = now.clients, len(x) // now.clients
        beside = x.view(clients, batch, *x.shape[1:]).transpose(0, 1).flatten(1, 2)  # (B, C in, ...)
        how = layer.stride, layer.padding, layer.dilation, clients * layer.groups
        y: Tensor = _Convolution.apply(beside, now.anchor, now, slots["weight"], slots.get("bias"), how)  # type: ignore[no-untyped-call]
        return y.view(batch, clients, -1, *y.shape[2:]).transpose(0, 1).flatten(0, 1)

    return forward


def _affine(x: Tensor, now: Pass, slots: Slots, axes: tuple[int, ...]) -> Tensor:
    """x w + b with w and b constant along `axes` of (C, B, ...); x alone without them."""
    if "weight" not in slots:
        return x
    parts = x.view(now.clients, -1, *x.shape[1:])
    y: Tensor = _Affine.apply(parts, now.anchor, now, slots["weight"], slots.get("bias"), axes)  # type: ignore[no-untyped-call]
    return y.view(x.shape)


def layer_norm(layer: nn.LayerNorm, now: Pass, slots: Slots) -> Forward:
    """nn.LayerNorm."""
    shape = list(layer.normalized_shape)

    def forward(x: Tensor) -> Tensor:
        axes = tuple(range(1, x.dim() + 1 - len(shape)))
        return _affine(functional.layer_norm(x, shape, eps=layer.eps), now, slots, axes)

    return forward


def group_norm(layer: nn.GroupNorm, now: Pass, slots: Slots) -> Forward:
    """nn.GroupNorm."""

    def forward(x: Tensor) -> Tensor:
        axes = (1, *range(3, x.dim() + 1))
        return _affine(functional.group_norm(x, layer.num_groups, eps=layer.eps), now, slots, axes)

    return forward


def embedding(layer: nn.Embedding, now: Pass, slots: Slots) -> Forward:
    """nn.Embedding."""

    def forward(places: Tensor) -> Tensor:
        flat = places.reshape(now.clients, -1)
        y: Tensor = _Lookup.apply(flat, now.anchor, now, slots["weight"], layer.padding_idx)  # type: ignore[no-untyped-call]
        return y.view(*places.shape, y.shape[-1])

    return forward


def attention(layer: nn.MultiheadAttention, now: Pass, slots: Slots) -> Forward:
    """nn.MultiheadAttention whose keys and values are as wide as its queries."""
    width, heads = layer.embed_dim, layer.num_heads

    def project(x: Tensor, rows: slice) -> Tensor:
        bias = slots.get("in_proj_bias")
        y = dense(x, now, slots["in_proj_weight"].part(rows), None if bias is None else bias.part(rows))
        return y.view(*x.shape[:2], -1, width // heads).transpose(1, 2)  # (samples, heads, length, width of a head)

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        inputs = (query, key, value) if layer.batch_first else (x.transpose(0, 1) for x in (query, key, value))
        parts = (slice(part * width, (part + 1) * width) for part in range(3))
        q, k, v = (project(x, rows) for x, rows in zip(inputs, parts, strict=True))
        scores = q @ k.transpose(2, 3) / math.sqrt(width // heads)
        if attn_mask is not None:
            scores = scores + _added(attn_mask if attn_mask.dim() == 2 else attn_mask.view(scores.shape), scores)
        if key_padding_mask is not None:
            scores = scores + _added(key_padding_mask, scores)[:, None, None]
        shares = scores.softmax(3)
        mixed = (shares @ v).transpose(1, 2).flatten(2)
        y = dense(mixed, now, slots["out_proj.weight"], slots.get("out_proj.bias"))
        told = None if not need_weights else shares.mean(1) if average_attn_weights else shares
        return y if layer.batch_first else y.transpose(0, 1), told

    return forward


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    """A mask as what is added to scores: minus infinity where it is true."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=scores.dtype, device=scores.device).masked_fill_(mask, -math.inf)


RULES: Final[dict[type[nn.Module], Callable[[Any, Pass, Slots], Forward]]] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.LayerNorm: layer_norm,
    nn.GroupNorm: group_norm,
    nn.Embedding: embedding,
    nn.MultiheadAttention: attention,
}
"""Layers with weights, and how C clients compute them; modules without weights run as they are."""
CONVOLUTIONS: Final = (nn.Conv1d, nn.Conv2d)


def beyond(layer: nn.Module) -> str | None:
    """What of a layer its rule does not know, as a clause; None if all is known."""
    if isinstance(layer, CONVOLUTIONS) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return f"padding {layer.padding!r} of mode {layer.padding_mode!r}"
    if isinstance(layer, nn.Embedding) and (layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse):
        return "embeddings with max_norm, scale_grad_by_freq or sparse gradients"
    if isinstance(layer, nn.MultiheadAttention):
        plain = layer.in_proj_weight is not None and layer.bias_k is None and not layer.add_zero_attn
        return None if plain and not layer.dropout else "attention with dropout, or with keys of another width or added"
    return None
