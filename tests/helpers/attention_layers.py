"""Layers of attention between two linear ones, each of which differs from the first by one thing."""

import torch
from torch.nn.functional import scaled_dot_product_attention

SIZE, HEADS = 8, 2
WIDTH = HEADS * SIZE


def turn(heads: torch.Tensor) -> torch.Tensor:
    half = SIZE // 2
    return torch.cat((-heads[..., half:], heads[..., :half]), -1) + heads


class Layer(torch.nn.Module):
    """A layer of attention between two linear ones, whose queries and keys a region turns, and variants of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.join = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def heads_of(self, x):
        """Returns query, key and value."""
        parts = (self.project(x) * 0.5).view(*x.shape[:2], 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
        return turn(parts[0]), turn(parts[1]), parts[2]

    def attend(self, query, key, value):
        """Returns a tensor of shape (rows, heads, positions, size)."""
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        return self.join(self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2))


class Stack(Layer):
    """Two layers of the same weights."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        return super().forward(torch.tanh(super().forward(x)))


class Scaled(Layer):
    """The gradient of a number for each of a query's elements is a sum of the query's gradients."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.rand(SIZE))

    def heads_of(self, x):
        """Returns query, key and value."""
        query, key, value = super().heads_of(x)
        return query * self.scale, key, value


class ResultReturned(Layer):
    """Somebody has the result as attention laid it out."""

    def forward(self, x):
        """Returns two tensors."""
        result = self.attend(*self.heads_of(x))
        return self.join(result.transpose(1, 2).flatten(2)), result


class JoinedReturned(Layer):
    """Somebody has what was a copy of the result, and may write into it."""

    def forward(self, x):
        """Returns two tensors."""
        joined = self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2)
        return self.join(joined), joined


class JoinedAdded(Layer):
    """A region has what was a copy of the result."""

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        joined = self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2)
        return self.join(joined) + joined.sin()


class HeadsKept(Layer):
    """Its result is multiplied with heads first."""

    def forward(self, x):
        """Returns a tensor of shape (rows, heads, positions, size)."""
        return self.attend(*self.heads_of(x)) @ self.join.weight[:SIZE, :SIZE]


class HeadsSplit(Layer):
    """Its result is multiplied with heads that are not joined."""

    def forward(self, x):
        """Returns a tensor of shape (rows, positions, heads, 2, size // 2)."""
        result = self.attend(*self.heads_of(x)).transpose(1, 2)
        return result.reshape(*x.shape[:2], HEADS, 2, SIZE // 2) @ self.join.weight[: SIZE // 2, : SIZE // 2]


class SwappedOtherwise(Layer):
    """Heads and sizes change places."""

    def forward(self, x):
        """Returns a tensor."""
        return self.attend(*self.heads_of(x)).permute(0, 2, 3, 1).flatten(2) @ self.join.weight


class Writing(Layer):
    """Something is written in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        """Returns a tensor of the shape of its argument."""
        self.calls.add_(1.0)
        return super().forward(x)


class Frozen(Layer):
    """What is multiplied is not saved for a weight's gradient."""

    def __init__(self):
        super().__init__()
        self.join.weight.requires_grad_(False)


class FrozenReturned(Frozen):
    """Somebody has what is multiplied, and may write into it: it is not saved."""

    def forward(self, x):
        """Returns two tensors."""
        joined = self.attend(*self.heads_of(x)).transpose(1, 2).flatten(2)
        return self.join(joined), joined


class RowsLater(Layer):
    """Positions come before rows, as in models that have their sequences first, until attention."""

    def __init__(self):
        super().__init__()
        self.join = torch.nn.Linear(WIDTH, WIDTH)

    def heads_of(self, x):
        """Returns query, key and value."""
        parts = self.project(x.transpose(0, 1)).view(x.shape[1], x.shape[0], 3, HEADS, SIZE).permute(2, 1, 3, 0, 4)
        return parts[0] * 1.1, parts[1] * 1.2, parts[2]
