"""The garbage collector is paused while Thunder traces and transforms, and is restored afterwards."""

import gc
import os
import threading
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import thunder
import torch
from thunder.core.transform_common import Transform

from fusioncache import tracing
from fusioncache.process import collector
from fusioncache.process.collector import Pause

X = torch.ones(3)


@pytest.fixture(autouse=True)
def installed():
    """Installs only the collector's pause, and restores the garbage collector after each test."""
    tracing.install(("collector",))
    thresholds = gc.get_threshold()
    yield
    gc.enable()
    gc.set_threshold(*thresholds)


def rests():
    """True if the collector's threshold is too high to be reached by new objects."""
    return gc.get_threshold()[0] > 2**30


class Watch(Transform):
    """A transform that works before Thunder's passes, and notes before and after them if the collector rests."""

    def __init__(self, work=lambda: None):
        self.work = work
        self.seen = []

    def transform_traces_pre_prologue(self, prologue, computation, epilogue, **_):
        self.work()
        self.seen.append(rests())
        return prologue, computation, epilogue

    def transform_trace_post_optimization(self, computation, **_):
        self.seen.append(rests())
        return computation


def compiled(watch, traced=None):
    def model(x):
        watch.seen.append(rests()) if traced is None else traced()
        return torch.sin(x)

    return thunder.jit(model, transforms=[watch])


def test_it_rests_from_the_first_operation_to_the_last_pass():
    before, watch = gc.get_threshold(), Watch()
    compiled(watch)(X)
    assert watch.seen == [True] * 3 and gc.get_threshold() == before != (0, 0, 0)


@pytest.mark.parametrize(("is_on", "threshold"), [(True, 12345), (False, 0)])
def test_what_a_program_does_to_it_stays(is_on, threshold):
    def change():
        gc.enable() if is_on else gc.disable()
        gc.set_threshold(threshold)

    if is_on:
        gc.disable()
    compiled(Watch(), change)(X)
    assert gc.isenabled() is is_on and gc.get_threshold()[0] == threshold


def fail():
    raise KeyError("of the model or of a transform")


@pytest.mark.parametrize(("work", "traced"), [(fail, None), (lambda: None, fail)])
def test_it_works_after_an_error(work, traced):
    model = compiled(Watch(work), traced)
    for _ in range(2):
        with pytest.raises(KeyError):
            model(X)
        assert not rests()


@contextmanager
def another_thread_inside(pause):
    """Runs another thread inside the pause; yields a function that ends it."""
    is_in, may_end = threading.Event(), threading.Event()

    def be_inside():
        with pause:
            is_in.set()
            assert may_end.wait(30)

    def end():
        may_end.set()
        thread.join()

    thread = threading.Thread(target=be_inside)
    thread.start()
    assert is_in.wait(30)
    yield end
    end()


def test_it_works_when_the_last_thread_is_done():
    pause = Pause()
    with another_thread_inside(pause) as end:
        with pause, pause:
            end()
            assert rests()
        assert not rests()


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("forks_inside", [False, True])
def test_it_works_in_a_child_in_which_no_thread_traces(forks_inside):
    """The child has only the thread that forked: its collector works at once, or when that thread leaves the pause."""
    pause, child = Pause(), 0
    with another_thread_inside(pause):
        with pause if forks_inside else nullcontext():
            child = os.fork()
            as_it_should_be = child or rests() is forks_inside
        if not child:
            os._exit(0 if as_it_should_be and not rests() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert rests()
    assert not rests()


class Cycle:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self):
        self.self = self


@contextmanager
def counted():
    """Yields a list of the generation of each collection."""
    found = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def is_old(value):
    return any(each is value for each in gc.get_objects(generation=2))


def test_what_a_long_pause_leaves_is_old_without_a_full_collection(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    gc.collect()
    frozen = gc.get_freeze_count()
    with counted() as found, Pause():
        stays, goes = Cycle(), weakref.ref(Cycle())
    assert found == [0]
    assert not goes()
    assert is_old(stays)
    assert gc.get_freeze_count() <= frozen < collector.MOST_FROZEN


def test_the_garbage_among_old_objects_is_collected_after_many_pauses(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    pause = Pause()
    with pause:
        old = Cycle()
    gone, found = weakref.ref(old), []
    del old
    for limit in (60.0, 0.0, 60.0):
        monkeypatch.setattr(collector, "SECONDS_PER_COLLECTION", limit)
        with counted() as collections, pause:
            pass
        found.append((*collections, gone() is None))
    assert found == [(0, False), (2, True), (0, True)]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_is_forked_while_objects_are_frozen_thaws_them(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    before, exits = gc.get_freeze_count(), []

    def fork_frozen():
        freeze()
        child = os.fork()
        if not child:
            os._exit(0 if gc.get_freeze_count() <= before else 1)
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    freeze = gc.freeze
    monkeypatch.setattr(gc, "freeze", fork_frozen)
    with Pause():
        pass
    assert exits == [0] and gc.get_freeze_count() <= before


def test_objects_thaw_after_an_error(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    before, freeze = gc.get_freeze_count(), gc.freeze

    def fail_frozen():
        freeze()
        raise KeyboardInterrupt

    monkeypatch.setattr(gc, "freeze", fail_frozen)
    with pytest.raises(KeyboardInterrupt), Pause():
        pass
    assert gc.get_freeze_count() <= before


def test_after_a_trace_its_objects_are_old(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    made = []
    alone = compiled(Watch(), lambda: made.append(Cycle()))
    outer = compiled(Watch(lambda: compiled(Watch())(X)), lambda: made.append(Cycle()))
    for model in (alone, outer):
        with counted() as found:
            model(X)
        assert is_old(made[-1]) and set(found) == {0}
        with counted() as found:
            model(X)
        assert not found


def test_objects_that_the_program_has_frozen_stay_frozen(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(collector, "MOST_FROZEN", -1)
    with counted() as found, Pause():
        stays = Cycle()
    assert found == [0] and not is_old(stays)


@pytest.mark.parametrize(("stop", "least"), [(gc.disable, 0), (lambda: gc.set_threshold(0), 0), (gc.enable, 60)])
def test_nothing_is_collected_where_the_program_wants_none_or_the_pause_is_short(stop, least, monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", least)
    stop()
    with counted() as found, Pause():
        Cycle()
    assert not found


def test_nothing_is_collected_if_the_program_stops_the_collector_in_a_pause(monkeypatch):
    monkeypatch.setattr(collector, "LEAST_SECONDS", 0.0)
    with counted() as found, Pause():
        gc.set_threshold(0)
    assert not found
