"""The benchmark of shared sequences: what is read of a job that fails midway, and which losses are wrong."""

import json
from dataclasses import replace

from benchmarks.sequence_parallel.__main__ import _read_points, check_losses
from benchmarks.sequence_parallel.spec import JobSpec

SPEC = JobSpec("plain", "narrow", 1, 1, (8, 4, 2), "eager", "cpu", "float32", 1, 0)


def test_a_length_that_a_rank_did_not_reach_has_the_reason_and_none_comes_behind(tmp_path):
    answers = [{"loss": 2.0, "step_ms": 1.0}, {"loss": 3.0, "step_ms": 1.0}]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(each) + "\n" for each in answers))
    (tmp_path / "1.jsonl").write_text(json.dumps(answers[0]) + "\n")
    first, second = _read_points(SPEC, tmp_path, 2, "out of memory")
    assert [rank["loss"] for rank in first["ranks"]] == [2.0, 2.0]
    assert (second["length"], second["error"]) == (4, "out of memory")


def test_losses_of_all_ranks_and_peers_are_compared_at_their_place(tmp_path):
    points = []
    for peer, losses in (("plain", (2.0, 3.0)), ("torch", (2.01, 3.3))):
        lines = [json.dumps({"loss": loss, "step_ms": 1.0}) for loss in losses]
        for rank in range(2):
            (tmp_path / f"{rank}.jsonl").write_text("\n".join(lines))
        points += _read_points(replace(SPEC, peer=peer, lengths=(8, 8)), tmp_path, 2, "")
    assert [point["correct"] for point in check_losses(points)] == [True, True, True, False]
