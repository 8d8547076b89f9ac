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
def raised_from_and_again(run: Runner) -> None:
    def inner(n):
        try:
            [1][n]
        except IndexError as error:
            raise Refused(n) from error

    def f(x, n):
        try:
            inner(n)
        except Refused as error:
            assert isinstance(error.__cause__, IndexError)
            try:
                raise
            except ValueError as again:
                return x + again.code + (again is error)
        return x

    run(f, X, 0)
    run(f, X, 3)


@program
def that_leave(run: Runner) -> None:
    def plain(x):
        raise Refused(3)

    def chained(x):
        try:
            return x + {"a": 1}["b"]
        except KeyError as error:
            raise Refused(4) from error

    def suppressed(x):
        try:
            return x + [1][2]
        except IndexError:
            raise Refused(5) from None

    def context(x):
        try:
            return x.no_such_attribute
        except AttributeError:
            return x + x.ndim["a"]

    def asserted(x):
        assert x.shape[0] == 3, f"shape {tuple(x.shape)}"
        return x

    for each in (plain, chained, suppressed, context, asserted):
        run(each, X)


@program
def of_names(run: Runner) -> None:
    def unbound(x, n):
        if n:
            y = x
        return y

    def free(x):
        def inner():
            return y

        z = inner()
        y = x
        return y + z

    def deleted(x):
        y = x
        del y
        return y

    def unknown(x):
        return x + no_such_name

    run(unbound, X, 1)
    run(unbound, X, 0)
    for each in (free, deleted, unknown):
        run(each, X)


@program
def of_operators(run: Runner) -> None:
    def added(x):
        return [1] + (2,)

    def compared(x):
        return 1 < "a"

    def negated(x):
        return -"a"

    def subscripted(x):
        pair = (1, 2)
        return pair["a"]

    def of_slice(x):
        return [1, 2]["a":]

    def stored(x):
        (1, 2)[0] = 3

    def hashed(x):
        return {[1]: 2}

    def contained(x):
        return 1 in 2

    def iterated(x):
        return [each for each in 3]

    def unpacked(x):
        a, b = [1, 2, 3]
        return a

    def unpacked_short(x):
        a, b, *c = (1,)
        return a

    def called(x):
        three = 3
        return three(x)

    def tensor_attribute(x):
        return x.no_such_thing

    def long_index(x):
        return [1, 2][10]

    def negative_index(x):
        return (1, 2)[-3]

    def true_of(x):
        return bool(Untrue())

    def length_of(x):
        return len(Negative())

    for each in (added, compared, negated, subscripted, of_slice, stored, hashed, contained, iterated, unpacked):
        run(each, X)
    for each in (unpacked_short, called, tensor_attribute, long_index, negative_index, true_of, length_of):
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


@program
def in_generators(run: Runner) -> None:
    def numbers(n):
        try:
            for k in range(n):
                yield k
        finally:
            pass
        return n

    def outer(n):
        total = yield from numbers(n)
        yield total * 10

    def f(x, n):
        it = outer(n)
        try:
            while True:
                x = x + next(it)
        except StopIteration as error:
            x = x + (error.value is None)
        return x

    def stops(x):
        def bad():
            yield 1
            raise StopIteration(3)

        return x + sum(bad())

    def leaves(x):
        def bad():
            yield 1
            raise Refused(9)

        return x + sum(bad())

    def sent(x):
        def echo():
            got = None
            while got != 3:
                got = yield (got or 0) + 1

        it = echo()
        a = next(it)
        b = it.send(5)
        try:
            it.send(3)
        except StopIteration:
            return x + a + b

    run(f, X, 3)
    for each in (stops, leaves, sent):
        run(each, X)


@program
def groups_of_exceptions(run: Runner) -> None:
    def f(x):
        try:
            raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
        except ExceptionGroup as group:
            return x + len(group.exceptions)

    run(f, X)


@program
def after_an_error_it_can_be_called_again(run: Runner) -> None:
    table = {}

    def f(x):
        return x * table["scale"]

    run(f, X)
    table["scale"] = 2
    run(f, X)
    run(f, X)
    del table["scale"]
    run(f, X)
    table["scale"] = 3
    run(f, X)


@program
def of_torch(run: Runner) -> None:
    def shapes(x, y):
        return x @ y

    def caught(x, y):
        try:
            return x @ y
        except Exception as error:
            return x + len(type(error).__name__)

    run(shapes, X, X)
    run(caught, X, X)
    run(shapes, X, X.T.contiguous())
