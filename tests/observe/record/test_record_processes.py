"""The record and the life of processes: several that write at once, forks, exits, caches that are gone."""

import gc
import os
import subprocess
import sys
import weakref

from recorded_templates import make_chain_template
from repository import HELPERS, ROOT, import_path

from fusioncache.cache.cache import Cache
from fusioncache.observe.record.database import RecordReader


def _python(script: str) -> None:
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_counts_after_the_last_save_are_written_at_exit_and_those_of_a_forked_child_are_not():
    script = """
import gc, os, sys
from fusioncache.cache.cache import Cache
from recorded_templates import count_compile, make_chain_template
def main():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (3,), hit=False)
    cache.write_record()
    child = os.fork()
    if child == 0:
        cache.ledger.count_region(make_chain_template(), (5,), hit=True)
        cache.write_record()
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    count_compile(cache.ledger, make_chain_template(), 2.5)
main()
gc.collect()
"""
    environment = {**os.environ, "PYTHONPATH": import_path(HELPERS)}
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = RecordReader().runs()
    assert (run.stats.regions, run.stats.compiles, run.stats.compile_seconds, run.ended) == (1, 1, 2.5, True)


def test_a_cache_in_use_is_not_kept_alive_by_its_record():
    cache = Cache()
    cache.ledger.count_region(make_chain_template(), (), hit=False)
    cache.write_record()
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None
