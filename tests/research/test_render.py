"""Conclusions of the experiments that train."""

from research import render
from research.base import Result


def test_conclusions_follow_the_numbers(gpt_result: Result) -> None:
    def page(**tests: float) -> str:
        rows = [
            {**row, "test": tests.get(row["name"].replace("-", "_"), row["test"])}
            for row in gpt_result["rows"]
        ]
        return render.page({**gpt_result, "rows": rows})

    near = page(conll_rotation_8=109.0, conll_user_8=100.0, conll_deidentified=120.0)
    assert "(users and entities) 109, user-level DP 100: a factor of 1.09, within 10%" in near
    assert "109 is below de-identification (120)" in near
    far = page(conll_rotation_8=111.0, conll_user_8=100.0, conll_deidentified=101.0)
    assert "a factor of 1.11, not within 10%" in far
    assert "111 is not below de-identification (101)" in far
    assert "| CoNLL-2003, UeDP: person | 35.09 (0.185); 29.24 (0.2) |" in near


def test_runs_that_learned_nothing_are_named(gpt_result: Result) -> None:
    def page(*unchanged: str) -> str:
        rows = [
            {
                **row,
                "test": 100.0,
                "validation": row["before"] * (0.96 if row["name"] in unchanged else 0.5),
            }
            for row in gpt_result["rows"]
        ]
        return render.page({**gpt_result, "rows": rows})

    assert "almost nothing" not in page()
    assert "within 10%. But user-level DP learned almost nothing." in page("conll-user-8")
    both = page("conll-rotation-8", "conll-user-8")
    assert "But rotation and user-level DP learned almost nothing." in both


def test_an_epsilon_above_its_target_is_printed_with_every_number(gpt_result: Result) -> None:
    """Guarantees are those that are proven, not those that were aimed at."""
    rows = [
        row | ({"epsilon": 8.1234} if row["name"] == "conll-rotation-8" else {})
        for row in gpt_result["rows"]
    ]
    page = render.page({**gpt_result, "rows": rows})
    told = [line for line in page.splitlines() if "CoNLL-2003" in line and "rotation" in line]
    assert any("proven epsilon 8.13: rotation" in line for line in told)
    assert not any("epsilon 8:" in line or "epsilon 8 " in line for line in told)
    assert any(line.endswith(" at 8.13 |") for line in page.splitlines())
    unknown = [row | ({"epsilon": None} if row["target"] else {}) for row in gpt_result["rows"]]
    assert " at no finite epsilon |" in render.main_table({**gpt_result, "rows": unknown})
