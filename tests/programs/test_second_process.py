"""A whole model in a second process, TorchInductor on the CPU: nothing is compiled, and every bit is the same.

``tests/backends/test_inductor_package.py`` has kernels of more kinds; ``test_stored_programs.py`` and
``tests/template/test_key.py`` have processes with seeds of their own for hashes.
"""

import json

import forked_processes as forks


def test_a_second_process_compiles_nothing(tmp_path):
    first, second = (
        json.loads(
            forks.ask(
                "inductor_steps",
                FUSIONCACHE_DIR=str(tmp_path / "store"),
                FUSIONCACHE_STORE="1",
                TORCHINDUCTOR_CACHE_DIR=str(tmp_path / f"inductor-{number}"),
            ).splitlines()[-1]
        )
        for number in (1, 2)
    )
    assert first["compiles"] > 3 and first["loads"] == 0
    assert first["programs"] == [0, 1]
    assert (second["compiles"], second["loads"], second["programs"]) == (0, first["compiles"], [1, 0])
    assert second["digest"] == first["digest"]
    assert first["compiler"] and not second["compiler"]
    assert not first["unkept"] and not first["bypasses"] and not second["bypasses"]
