"""Exceptions as control flow, exceptions that leave, and errors of wrong calls."""

from __future__ import annotations

import contextlib

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Refused(ValueError):
    """An exception with a state of its own."""

    def __init__(self, code: int, text: str = "refused"):
        super().__init__(f"{text}: {code}")
        self.code = code


@program
def caught_by_type_and_tuple_and_base(run: Runner) -> None:
    def f(x, n):
        for k in range(n):
            try:
                if k == 0:
                    raise KeyError("zero")
                if k == 1:
                    raise Refused(7)
                if k == 2:
                    [][3]
                if k == 3:
                    {}["a"]
                if k == 4:
                    None.nothing
                if k == 5:
                    len(3)
                if k == 6:
                    1 / 0
                if k == 7:
                    int("a")
                x = x * 2
            except (KeyError, IndexError) as error:
                x = x + len(str(error))
            except Refused as error:
                x = x + error.code
            except (AttributeError, TypeError) as error:
                x = x - len(str(error))
            except Exception as error:
                x = x * len(str(error))
            else:
                x = x - 1
            finally:
                x = x + 0.5
        return x

    run(f, X, 9)
    run(f, X, 9)
    run(f, X, 2)


@program
def of_operators(run: Runner) -> None:
    def stored(x):
        (1, 2)[0] = 3

    def unpacked(x):
        a, b = [1, 2, 3]
        return a

    def unpacked_short(x):
        a, b, *c = (1,)
        return a

    pair, three = (1, 2), 3
    refused = [
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
    ]
    for each in (stored, unpacked, unpacked_short, *refused):
        run(each, X)


class Untrue:
    def __bool__(self):
        return 3


class Negative:
    def __len__(self):
        return -1


@program
def in_finally_and_with(run: Runner) -> None:
    events = []

    class Manager:
        def __init__(self, swallow):
            self.swallow = swallow

        def __enter__(self):
            events.append("enter")
            return self

        def __exit__(self, kind, error, trace):
            events.append(f"exit {kind and kind.__name__} {error}")
            return self.swallow

    @contextlib.contextmanager
    def managed(n):
        try:
            yield n
        except KeyError:
            events.append("key")
        finally:
            events.append("left")

    def f(x, swallow):
        with Manager(True) as one, Manager(swallow):
            x = x + (one.swallow is True)
            raise Refused(1)
        with managed(3) as n:
            x = x * n
        with contextlib.suppress(ZeroDivisionError):
            x = x / (1 // 0)
        return x

    def g(x):
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
    run(g, X)
    run(early, X)
    run.note("events", events)
