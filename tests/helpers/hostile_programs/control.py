"""Branches, loops, chains of comparisons, exceptions as control flow, and errors that leave."""

import contextlib

import torch

from hostile_programs.observation import X, answering


def truth_of_everything(run):
    events = run.events

    class Loud:
        def __init__(self, name, value):
            self.name, self.value = name, value

        def __bool__(self):
            events.append(self.name)
            return self.value

    Sized = answering(__len__=lambda self: events.append("len") or 0)

    def f(x, values):
        for place, value in enumerate(values):
            if value:
                x = x + place
            if not value:
                x = x - place
            x = x + (1 if value else 2) + bool(value) + (not value)
            while value:
                x = x * 2
                break
        return x

    def g(x):
        a = Loud("a", True) and Loud("b", False) or Loud("c", True)
        b = not (Loud("d", False) or Loud("e", False))
        if Sized():
            x = x * 3
        return x + len(a.name) + b

    run(f, X, [0, 1, 0.0, -0.0, 2.5, "", "a", (), (0,), [], [0], {}, {0: 0}, None, True, False, set(), {0}])
    run(f, X, [float("nan"), float("inf"), 1j, 0j, range(0), range(2), b"", b"a", ..., int, X.dtype])
    run(g, X)


def chains_of_comparisons(run):
    events = run.events

    class Odd:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            events.append(f"{self.value} lt")
            return "yes" if self.value < other.value else ""

        def __eq__(self, other):
            return NotImplemented

        def __le__(self, other):
            return [self.value]

    def f(x, n):
        a = 0 < n < 3 <= 5 != n
        b = n == 1 == True is not None
        c = Odd(1) < Odd(2) < Odd(0)
        d = (Odd(1) <= 3)[0] + (Odd(1) == 3) + (Odd(1) != 3)
        return x + a + b + len(c or "zzzz") + d + (n in (1, 2) != False) + (None is None is not False)

    for n in (1, 2, 1.0, True, 4):
        run(f, X, n)


def shapes_and_types_of_tensors(run):
    def f(x, y):
        if x.shape[0] == 2 and x.ndim == 2 and x.dtype == torch.float32 and not x.requires_grad:
            x = x * 2
        b, *rest = x.shape
        if isinstance(y, torch.Tensor) and isinstance(x, (int, torch.Tensor)):
            x = x + y
        elif y is None or isinstance(y, (float, int)):
            x = x + 1
        if type(x) is torch.Tensor or issubclass(type(x), torch.Tensor):
            x = x + 3
        if hasattr(x, "sin") and not hasattr(x, "no_such") and callable(x.cos):
            x = x.sin()
        return x.reshape(b * rest[0]) + x.size(0) + x.numel() + len(x) + x.size()[1] + x.device.type.count("c")

    tensors = X, X.double(), torch.ones(3, 2), X.clone().requires_grad_()
    for x, y in zip((X, X, *tensors), (None, True, X, tensors[1], None, None), strict=True):
        run(f, x, y)


class Refused(ValueError):
    """An exception with a state of its own."""

    def __init__(self, code, text="refused"):
        super().__init__(f"{text}: {code}")
        self.code = code


def exceptions_that_are_caught(run):
    def raising(error):
        raise error

    fail = [
        lambda: raising(KeyError("zero")),
        lambda: raising(Refused(7)),
        lambda: [][3],
        lambda: None.nothing,
        lambda: len(3),
        lambda: 1 / 0,
        lambda: None,
    ]

    def f(x, n):
        for each in fail[:n]:
            try:
                each()
                x = x * 2
            except (KeyError, IndexError) as error:
                x = x + len(str(error))
            except Refused as error:
                x = x + error.code
            except Exception as error:
                x = x * len(str(error))
            else:
                x = x - 1
            finally:
                x = x + 0.5
        return x

    for n in (7, 7, 2):
        run(f, X, n)


def errors_of_operators(run):
    def stored(x):
        (1, 2)[0] = 3

    def unpacked(x):
        a, b = [1, 2, 3]
        return a

    def unpacked_short(x):
        a, b, *c = (1,)
        return a

    pair, three, Untrue, Negative = (1, 2), 3, answering(__bool__=3), answering(__len__=-1)
    run.each(
        stored,
        unpacked,
        unpacked_short,
        lambda x: [1] + (2,),
        lambda x: 1 < "a",
        lambda x: -"a",
        lambda x: pair["a"],
        lambda x: [1, 2]["a":],
        lambda x: {[1]: 2},
        lambda x: 1 in 2,
        lambda x: [each for each in 3],
        lambda x: three(x),
        lambda x: x.no_such_thing,
        lambda x: [1, 2][10],
        lambda x: (1, 2)[-3],
        lambda x: bool(Untrue()),
        lambda x: len(Negative()),
    )


def finally_and_with(run):
    events = run.events

    class Manager(answering(__enter__=lambda self: events.append("enter") or self)):
        def __init__(self, swallow):
            self.swallow = swallow

        def __exit__(self, kind, error, trace):
            events.append(f"exit {kind and kind.__name__} {error}")
            return self.swallow

    @contextlib.contextmanager
    def managed(n):
        try:
            yield n
        except KeyError:
            events.append("key")

    def f(x, swallow):
        with Manager(True) as one, Manager(swallow):
            x = x + (one.swallow is True)
            raise Refused(1)
        with managed(3) as n:
            x = x * n
        with contextlib.suppress(ZeroDivisionError):
            x = x / (1 // 0)
        return x

    def leaving(x):
        with managed(3) as n:
            x = x * n
            raise KeyError("inside")
        return x

    def early(x):
        for k in range(5):
            try:
                if k == 2:
                    continue
                if k == 3:
                    return x + k
            finally:
                x = x * 2
                if k == 1:
                    events.append("one")
        return x

    run(f, X, True)
    run(f, X, False)
    run.each(leaving, early)
