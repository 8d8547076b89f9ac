"""Modules with hooks, buffers, flags and ways of their own to keep attributes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Lin(nn.Module):
    """A linear layer with an attribute."""

    def __init__(self, scale=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.scale = scale

    def forward(self, x, shift=0):
        return x @ self.weight * self.scale + shift


@program
def hooks(run: Runner) -> None:
    model, events = nn.Sequential(Lin(), Lin(3)), []

    def before(module, args):
        events.append("before")
        return (args[0] * 2,)

    def after(module, args, output):
        events.append("after")
        return output + 1

    def before_named(module, args, kwargs):
        return args, {**kwargs, "shift": 5}

    run(model, X)
    handles = [model[0].register_forward_pre_hook(before)]
    run(model, X)
    handles.append(model[1].register_forward_hook(after))
    run(model, X)
    handles.append(model[1].register_forward_pre_hook(before_named, with_kwargs=True))
    run(model, X)
    handles.append(model[0].register_forward_hook(lambda m, a, k, o: o * 3, with_kwargs=True, prepend=True))
    run(model, X)
    for handle in handles:
        handle.remove()
        run(model, X)
    run.note("events", events)


@program
def hooks_from_the_start(run: Runner) -> None:
    model = nn.Sequential(Lin(), Lin(3))
    model[1].register_forward_hook(lambda m, a, o: o + a[0])
    model[0].register_forward_hook(lambda m, a, o: None, always_call=True)
    model[0].register_full_backward_hook(lambda m, gi, go: None)
    run(model, X)
    run(model, X)


@program
def hooks_for_all_modules(run: Runner) -> None:
    model, events = nn.Sequential(Lin(), Lin(3)), []
    run(model, X)
    handle = global_hooks.register_module_forward_pre_hook(lambda m, a: events.append(type(m).__name__))
    try:
        run(model, X)
        run(nn.Sequential(Lin()), X)
    finally:
        handle.remove()
    handle = global_hooks.register_module_forward_hook(lambda m, a, o: o * 2)
    try:
        run(nn.Sequential(Lin()), X)
    finally:
        handle.remove()
    run(model, X)
    run.note("events", events)


@program
def flags_that_flip(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(3)

        def forward(self, x):
            x = self.norm(self.drop(x))
            return x * 2 if self.training else x

    model = Net()
    model.eval()
    run(model, X)
    model.train()
    torch.manual_seed(1)
    run(model, X)
    model.drop.eval()
    run(model, X)
    model.eval()
    run(model, X)
    model.norm.weight.requires_grad_(False)
    run(model, X)


@program
def buffers(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.ones(3))
            self.register_buffer("passing", torch.full((3,), 2.0), persistent=False)
            self.register_buffer("none", None)
            self.register_parameter("absent", None)
            self.count = nn.Buffer(torch.tensor(0))

        def forward(self, x):
            if self.none is not None:
                x = x + self.none
            if self.absent is None:
                x = x * 2
            self.kept.add_(1)
            self.count += 1
            return x * self.kept + self.passing + self.count

    model = Net()
    run(model, X)
    run(model, X)
    model.none = torch.ones(3)
    run(model, X)
    model.absent = nn.Parameter(torch.ones(3))
    run(model, X)
    model.passing = torch.ones(3, dtype=torch.float64)
    run(model, X)


@program
def buffers_that_are_replaced_inside(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.calls = 0

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return x - self.mean

    model = Net()
    run(model, X)
    run(model, X * 2)


@program
def attributes_that_are_set_inside(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.last = 0, None

        def forward(self, x):
            self.calls = self.calls + 1
            self.last = x * 2
            return x * self.calls + self.last

    model = Net()
    for _ in range(3):
        run(model, X)


@program
def attributes_of_their_own_kind(run: Runner) -> None:
    events = []

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
            self.hidden_scale = 3

        def __getattr__(self, name):
            if name == "scale":
                return super().__getattr__("weight") * self.hidden_scale
            if name == "magic":
                return 5
            return super().__getattr__(name)

        def __setattr__(self, name, value):
            events.append(name)
            super().__setattr__(name, value)

        @property
        def twice(self):
            return self.weight * 2

        @property
        def broken(self):
            return self.no_such_thing

        def forward(self, x):
            x = self.inner(x) * self.scale + self.magic + self.twice
            return x + hasattr(self, "nothing") + getattr(self, "nothing", 4) + hasattr(self, "broken")

    class Missing(nn.Module):
        def forward(self, x):
            return self.no_such_thing(x)

    class Broken(Lazy):
        def forward(self, x):
            return x + self.broken

    model = Lazy()
    run(model, X)
    model.hidden_scale = 4
    run(model, X)
    run(Missing(), X)
    run(Broken(), X)
    run.note("events", events)


@program
def wrappers_that_pass_everything_on(run: Runner) -> None:
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs) * self.scale

    model = Wrapper(Wrapper(Lin(3)))
    run(model, X)
    model.inner.inner.scale = 4
    run(model, X, shift=2)


@program
def calls_of_their_own(run: Runner) -> None:
    class Called(Lin):
        def __call__(self, x, *args, **kwargs):
            return super().__call__(x * 2, *args, **kwargs) + 1

    class Around(Lin):
        def _call_impl(self, *args, **kwargs):
            return super()._call_impl(*args, **kwargs) - 1

    class Direct(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Called(), Around()

        def forward(self, x):
            return self.a(x) + self.b(x, shift=1) + self.a.forward(x) + Lin.forward(self.b, x)

    model = Direct()
    run(model, X)
    model.a.forward = lambda x, shift=0: x - 7
    run(model, X)
    del model.a.forward
    Lin.marker = True
    run(model, X)
    del Lin.marker


@program
def forward_on_the_instance(run: Runner) -> None:
    model = nn.Sequential(Lin(), Lin())
    inner = model[1]
    own = inner.forward
    inner.forward = lambda x: own(x) * 2
    run(model, X)
    inner.scale = 5
    run(model, X)


@program
def containers_of_modules(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.many = nn.ModuleList([Lin(1), nn.Sequential(Lin(2), nn.ModuleDict({"a": Lin(3)})["a"])])
            self.named = nn.ModuleDict({"a": Lin(4), "b": nn.Identity()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))])
            self.table = nn.ParameterDict({"w": nn.Parameter(torch.full((3,), 2.0))})
            self.plain = [Lin(5)]
            self.mixed = {"a": (Lin(6), 2)}

        def forward(self, x):
            for place, layer in enumerate(self.many):
                x = layer(x) + place
            for name, layer in self.named.items():
                x = layer(x) + len(name)
            for name in self.named:
                x = x + len(self.named) + (name in self.named)
            x = x + sum(self.weights) + self.table["w"] + len(self.weights) + self.weights[-1]
            layer, times = self.mixed["a"]
            x = self.plain[0](x) + layer(x) * times + self.many[-1](x) + len(self.many[1:])
            return x

    class Backward(Net):
        def forward(self, x):
            for layer in reversed(self.many):
                x = layer(x)
            return x

    class Counting(Net):
        def forward(self, x):
            x = x + len(list(self.children())) + sum(1 for _ in self.named_modules())
            return x + sum(w.sum() for w in self.parameters())

    run(Backward(), X)
    run(Counting(), X)
    model = Net()
    run(model, X)
    model.many.append(Lin(7))
    run(model, X)
    model.named["c"] = Lin(8)
    run(model, X)
    model.plain[0].scale = 9
    run(model, X)
    del model.many[0]
    run(model, X)


@program
def modules_that_are_replaced(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Lin(), Lin()

        def forward(self, x):
            return self.b(self.a(x)) + (self.a is self.b)

    model = Net()
    run(model, X)
    model.b = Lin(3)
    run(model, X)
    model.b = model.a
    run(model, X)
    model.b = nn.Identity()
    run(model, X)
    model.a = torch.sin if False else nn.Tanh()
    run(model, X)
    model.b = Lin(3)
    model.b.weight = model.b.weight
    run(model, X)
    model.b.weight = nn.Parameter(torch.ones(3, 3), requires_grad=False)
    run(model, X)
    del model.b
    run(model, X)


@program
def parameters_that_change(run: Runner) -> None:
    model = Lin()
    run(model, X)
    with torch.no_grad():
        model.weight.mul_(2)
    run(model, X)
    model.weight.data = torch.ones(3, 4)
    run(model, X)
    model.double()
    run(model, X)
    run(model, X.double())
    model.weight.requires_grad_(False)
    run(model, X.double())


@program
def tied_parameters(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens))

    model, tokens = Net(), torch.tensor([[0, 1, 4]])
    run(model, tokens)
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    run(model, tokens)


@program
def parametrizations(run: Runner) -> None:
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    model = Lin()
    nn.utils.parametrize.register_parametrization(model, "weight", Double())
    run(model, X)

    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    run(normed, X)


@program
def checkpointing(run: Runner) -> None:
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Lin(), Lin()

        def forward(self, x):
            return self.b(checkpoint(self.a, x, use_reentrant=False))

    run(Net(), X)


@program
def layers_of_torch(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.norm, self.rms = nn.LayerNorm(4), nn.RMSNorm(4)
            self.act = nn.ModuleList([nn.GELU(approximate="tanh"), nn.SiLU(), nn.ReLU(), nn.Softmax(-1)])
            self.out = nn.Linear(4, 2)

        def forward(self, tokens):
            x = self.rms(self.norm(self.embed(tokens)))
            q = x[:, None]
            x = x + nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0]
            for act in self.act:
                x = act(x)
            return self.out(x)

    run(Net(), torch.tensor([[0, 1, 6], [2, 3, 5]]))


@program
def the_same_module_twice_and_in_itself(run: Runner) -> None:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = Lin()
            self.many = nn.ModuleList([self.a, self.a, Lin()])

        def forward(self, x, depth=2):
            for layer in self.many:
                x = layer(x)
            return self(x, depth=depth - 1) if depth else x

    model = Net()
    run(model, X)
    run(model, X, depth=1)
    model.a.scale = 1
    run(model, X)


@program
def modules_made_inside(run: Runner) -> None:
    class Net(nn.Module):
        def forward(self, x):
            return nn.functional.relu(x) + nn.Tanh()(x)

    run(Net(), X)


@program
def dataclasses_as_outputs(run: Runner) -> None:
    from dataclasses import dataclass

    @dataclass
    class Out:
        logits: torch.Tensor
        loss: torch.Tensor | None = None

    class Net(nn.Module):
        def forward(self, x, full=True):
            out = Out(x * 2)
            out.loss = out.logits.sum()
            return out if full else (out.loss, {"logits": out.logits})

    model = Net()
    run(model, X)
    run(model, X, full=False)


@program
def counters_as_modules_use_them(run: Runner) -> None:
    model = nn.BatchNorm1d(3)
    run(model, X)
    run(model, X)
    run(nn.BatchNorm1d(3, momentum=None, track_running_stats=True), X)
    run(nn.BatchNorm1d(3, track_running_stats=False), X)
