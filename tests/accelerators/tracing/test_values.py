"""Constraints of Thunder's interpreter: what the shortcut adds is what Thunder adds."""

from hypothesis import given
from hypothesis import strategies as st
from thunder.core import jit_ext
from thunder.core.proxies import Proxy

from fusioncache.thunder_adapter.shortcuts.values import index_constraints


class Context:
    def __init__(self):
        self._constraints = []


def make_proxy(name):
    proxy = jit_ext.ProxyInterface.__new__(Proxy)
    proxy._name = name
    return proxy


proxies = st.sampled_from([make_proxy(name) for name in "aab"])
checks, values = st.sampled_from([len, max]), st.sampled_from([1, 2, 1.0, "a", float("nan")])
constraints = st.one_of(
    st.just((min,)),
    st.tuples(checks, proxies),
    st.tuples(checks, proxies, values),
    st.tuples(st.just(sum), proxies, proxies),
)


@given(st.lists(st.tuples(constraints, st.booleans()), max_size=30))
def test_constraints_are_thunders(given):
    """The same ones, in the same order, also where other code has put some there, or they are on no proxy."""
    own, ours = Context(), Context()
    own_add = jit_ext.JitCtx.add_constraint
    add = index_constraints(own_add)
    for constraint, is_ours in given:
        for context, function in ((own, own_add), (ours, add)):
            function(context, constraint) if is_ours else context._constraints.append(constraint)
        assert ours._constraints == own._constraints


def test_a_constraint_is_compared_with_those_on_the_same_proxy():
    own_add, compared, context = jit_ext.JitCtx.add_constraint, [], Context()
    add = index_constraints(lambda self, constraint: compared.append([*self._constraints]) or own_add(self, constraint))
    for proxy in map(make_proxy, "abab"):
        add(context, (len, proxy))
    assert len(context._constraints) == 2 and list(map(len, compared)) == [0, 0, 1, 1]
