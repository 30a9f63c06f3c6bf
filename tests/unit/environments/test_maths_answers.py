r"""Where the final answer of a completion stands: which `\boxed{}`, tag or line."""

import pytest

from stages.environments.maths.answers import AnswerIn, final_answer


@pytest.mark.parametrize(
    ("answer_in", "text", "words"),
    [
        ("last_box", r"\boxed{1} and \boxed{2}.", "2"),
        ("first_box", r"\boxed{1} and \boxed{2}.", "1"),
        ("last_box", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("last_box", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("last_box", r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("last_box", r"\fbox{1} \boxed {2}", "2"),
        ("last_box", r"\boxed{\boxed{3}}", "3"),
        ("first_box", r"\boxed{1 + \boxed{3}}", r"1 + \boxed{3}"),
        ("last_box", r"\boxed{1} but no: \boxed{2", "1"),  # cut before its end
        ("last_box", r"\boxed{{1}", None),
        ("last_box", r"} {\boxed{4} {", "4"),
        ("last_box", r"\boxed 5", None),
        ("last_box", "5", None),
        ("answer_tag", "<answer>1</answer> <answer> 2 </answer>", " 2 "),
        ("answer_tag", r"\boxed{1} <answer>so \boxed{2}, not $3$</answer>", "2"),
        ("answer_tag", "<answer>2", None),
        ("answer_tag", "2</answer>", None),
        ("answer_tag", "<answer>1</answer> <answer>", "1"),
        ("answer_line", "Answer: 1\nanswer : 2 \nDone.", "2 "),
        ("answer_line", r"Answer: $\boxed{7}$", "7"),
        ("answer_line", "Answer:\n3", None),
        ("answer_line", "Answer: 3" + " " * 400, None),
        ("anywhere", r"\boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}"),
    ],
)
def test_the_answer_of_each_rule(answer_in: AnswerIn, text: str, words: str | None) -> None:
    answer = final_answer(text, answer_in)
    assert (answer and answer.words) == words
    if answer is not None:
        assert answer.words in text[: answer.end]


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 20_000, "{" * 50_000 + "}" * 50_000, "<answer>" * 20_000, "answer:" * 9000]
)
@pytest.mark.parametrize("answer_in", ["last_box", "first_box", "answer_tag", "answer_line"])
def test_long_texts_without_an_end_are_read(answer_in: AnswerIn, text: str) -> None:
    answer = final_answer(text, answer_in)
    assert answer is None or answer_in == "answer_line"
