"""Containers, subclasses of them that do otherwise, iterators and comprehensions."""

import bisect
import functools
import heapq
import itertools
import operator

from hostile_programs.observation import X, answering

LoudDict = answering(
    dict,
    __getitem__=lambda self, key: dict.__getitem__(self, key) * 10 if key != "nothing" else 4,
    __contains__=lambda self, key: key == "ghost" or dict.__contains__(self, key),
    __len__=17,
    __iter__=lambda self: iter(["a", "a"]),
    get=5,
    keys=["a"],
    items=[("a", 1), ("b", 2)],
)
LoudList = answering(
    list,
    __getitem__=lambda self, index: 100 if isinstance(index, int) else [7, 8],
    __len__=3,
    __iter__=lambda self: iter([5, 6]),
    __contains__=lambda self, value: value == "ghost",
    __bool__=False,
    __add__=41,
    __eq__=True,
)
LoudTuple = answering(tuple, __getitem__=1000, __iter__=lambda self: iter((1, 2)), __len__=5, __bool__=False)
LoudInt = answering(int, __add__=50, __bool__=False, __index__=1, __eq__=True, __hash__=2)
LoudStr = answering(str, __eq__=True, __len__=30, __hash__=lambda self: hash("a"))
MissingDict = answering(dict, __missing__=4)
QuietDict, QuietList, QuietTuple = map(answering, (dict, list, tuple))


def everything(*args, **kwargs):
    return sum(args) + len(kwargs)


def close(function, value):
    return lambda x: function(x, value)


def with_dict(x, d):
    x = x * d["a"] + len(d) + ("ghost" in d) + ("a" in d) + sum(1 for _ in d) + d.get("zz") + (3 if d else 4)
    for k, v in d.items():
        x = x + len(k) * v
    return x + len(d.keys()) + d["nothing"]


def with_list(x, l):
    x = x + l[0] + l[1:][0] + len(l) + ("ghost" in l) + (1 in l) + sum(l) + bool(l) + (5 if l else 6)
    a, b = l
    return x + a * b + (not l)


def with_tuple(x, t):
    c, e = t
    return x + len(t) + sum(t) + (7 if t else 8) + c * e


WITH_SUBCLASSES = (
    (LoudDict(a=2, b=3), [with_dict, lambda x, d: x + everything(**d) + sum(len(name) for name in {**d})]),
    (LoudList([1, 2, 3]), [with_list, lambda x, l: x + (l == [1]) + (l + [2]), lambda x, l: x + everything(*l)]),
    (LoudTuple((1, 2, 3)), [with_tuple, lambda x, t: x + t[0] + t[-1], lambda x, t: x + everything(*t)]),
    (MissingDict(a=2), [lambda x, d: x * d["nothing"] + d["a"]]),
)


def subclasses_with_methods_of_their_own(run):
    for value, functions in WITH_SUBCLASSES:
        for function in functions:
            run(function, X, value)
            run(close(function, value), X)


def subclasses_without_methods_of_their_own(run):
    d, l, t = QuietDict(a=2, b=X), QuietList([1, X, 3]), QuietTuple((X, 2, 3))
    d.extra, l.extra = 5, 6

    def f(x):
        x = x * d["a"] + d["b"] + len(d) + ("a" in d) + sum(1 for _ in d) + d.get("zz", 3) + d.extra
        x = x + l[0] + l[1] + l[-1:][0] + len(l) + (1 in (l[0], 2)) + l.extra + (5 if l else 6)
        a, b, c = t
        return x + a + b * c + len(t) + (0 if not t else 1)

    def g(x, d, l, t):
        return x * d["a"] + l[0] + t[1]

    run(f, X)
    d["a"] = 9
    l.append(3)
    run(f, X)
    run(g, X, d, l, t)
    run(g, X, dict(d), list(l), tuple(t))


def numbers_and_texts_of_subclasses(run):
    n, s, table, names = LoudInt(2), LoudStr("a"), [10, 20, 30], {"a": 1, "b": 2}

    def f(x):
        x = x * (n + 3) + (1 if n else 2) + table[n] + names[s] + len(s) + (s == "zz") + (n == 9)
        return x + (s in names) + (n in table) + n * 2

    def g(x, n, s):
        return x * n + len(s)

    run(f, X)
    for number, text in ((n, s), (2, "a"), (True, "a")):
        run(g, X, number, text)


def changed_inside(run):
    def f(x):
        l, d, s = [1, 2, 3], {"a": 1}, {1}
        l.extend([5, x])
        l[1] = 8
        l[2:4] = [7]
        l += [1]
        popped = l.pop(2)
        l.reverse()
        d["b"] = x
        d.update(c=3, **{"e": 4})
        d |= {"f": 5}
        d.setdefault("g", []).append(x)
        del d["a"]
        s |= {5}
        total = popped + d.pop("c") + d.pop("zz", 0) + len(s) + len(l) + len(d) + l.count(1) + l.index(8)
        l.clear()
        return x * total + d.popitem()[1][0] + d["b"] + (not l)

    def g(x, l, d):
        l.append(x)
        d["new"] = x * 2
        return l[-1] + d["new"]

    run(f, X)
    run(g, X, [1], {})


def iterators_and_comprehensions(run):
    def f(x):
        it = iter([1, 2, 3, 4, 5])
        a = next(it) + next(it)
        rest = list(it)
        b = next(it, 7)
        for place, (one, other) in enumerate(zip([x, x * 2], (3, 4), strict=True), start=1):
            x = x + one * other * place
        for one, other in zip(reversed([1, 2]), {"a": 1, "b": 2}.items(), strict=True):
            x = x + one * other[1]
        for k in reversed(range(3)):
            x = x * (k + 1)
        x = x + sum(itertools.chain([1], (2,))) + sum(itertools.islice(itertools.count(), 3, 7, 2))
        return x * a + sum(rest) + b + list(map(int, "12"))[1] + sum(iter([1, 2, 3].pop, 1))

    def partly(x):
        it = iter(range(6))
        for k in it:
            x = x + k
            if k == 2:
                break
        for k in it:
            x = x * 2
            next(it, None)
        z = zip(iter([1, 2, 3]), [4, 5], strict=False)
        return x + next(z)[1] + sum(a * b for a, b in z)

    def shrinking(x):
        values = [1, 2, 3, 4]
        for k in values:
            values.remove(k)
            x = x + k
        return x

    def growing(x):
        d = {"a": 1}
        for k in d:
            d[k + "b"] = 1
        return x

    def comprehended(x):
        n = 3
        a = [k * n for k in range(4) if k % 2 if k]
        b = {k: v for k, v in zip("abc", a, strict=False)}
        c = {k % 2 for k in range(5)}
        d = [[i * j for j in range(i)] for i in range(3)]
        e = sum(x * k for k in a)
        g = tuple(y for y in (k + n for k in a))
        return e + sum(b.values()) + len(c) + d[2][1] + sum(g) + sum([y := 3, y])

    run.each(f, partly, shrinking, growing, comprehended)


class Key:
    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.n == other.n


def keys_that_look_alike(run):
    table = {1: 10, "1": 20, 2.5: 30, None: 40, (1, 2): 50}
    own = {Key(1): 10, Key(2): 20}

    def f(x, key):
        return x * table[key]

    def g(x):
        x = x * own[Key(2)] + (Key(1) in own) + len({Key(1), Key(1), Key(3)}) + (Key(1) in [Key(2), Key(1)])
        return x + [Key(1), Key(2)].index(Key(2)) + [Key(1)].count(Key(1)) + table[1] + table[True] + table[1.0]

    for key in (1, True, 1.0, "1", 2.5, None, (1, 2), 1):
        run(f, X, key)
    run(g, X)
    table[True] = 11
    run(g, X)


class One:
    k = 1


CHANGED_BEHIND = (
    (
        lambda: [3, 1, 2],
        [
            lambda v: heapq.heapify(v),
            lambda v: bisect.insort(v, 0),
            lambda v: operator.setitem(v, 0, 8),
            lambda v: list(map(v.append, [5])),
            lambda v: sorted([1], key=v.append),
        ],
        [lambda v: v[0] + v[-1], len, sum, lambda v: [k for k in v][0], lambda v: 5 if v else 6, lambda v: 3 in v],
    ),
    (
        lambda: {"a": 1, "b": 2},
        [
            lambda v: operator.setitem(v, "a", 8),
            lambda v: operator.setitem(v, "z", 8),
            lambda v: operator.delitem(v, "b"),
            lambda v: sorted(["n"], key=lambda k: v.setdefault(k, 4)),
        ],
        [lambda v: v["b"] if "b" in v else 3, len, lambda v: sum(v.values()), lambda v: sum(len(k) for k in v)],
    ),
    (
        One,
        [
            lambda v: sorted([1], key=lambda k: setattr(v, "k", 5) or 1),
            lambda v: operator.setitem(vars(v), "k", 6),
            lambda v: object.__setattr__(v, "k", 7),
            lambda v: functools.update_wrapper(v, One, assigned=("k",), updated=()),
        ],
        [lambda v: v.k, lambda v: getattr(v, "k", 3), lambda v: vars(v).get("k", 4)],
    ),
)
"""Values made in the trace, changes of them by functions written in C, and reads before and after."""


def changed_behind_the_interpreter(run):
    for make, changes, reads in CHANGED_BEHIND:
        for place, change in enumerate(changes):
            for read in (reads[place % len(reads)], reads[(place + 1) % len(reads)]):

                def f(x, change=change, read=read):
                    value = make()
                    before = read(value)
                    change(value)
                    return x * before + read(value)

                run(f, X)

    def cell(x):
        before = n = 1

        def change(k):
            nonlocal n
            n = k + 10
            return k

        max([1, 2], key=change)
        return x * n + before

    run(cell, X)
