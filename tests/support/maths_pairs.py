r"""Answers to mathematical problems with the verdict that each must get, for one process and for several."""

from dataclasses import dataclass

from stages.environments.maths.answers import AnswerIn
from stages.environments.maths.verdicts import Reason


@dataclass(frozen=True)
class Pair:
    """A completion, the right answers, where the answer stands, and the verdict."""

    completion: str
    golds: tuple[str, ...]
    reason: Reason
    answer_in: AnswerIn = "last_box"


def boxed(answer: str, gold: str, reason: Reason) -> Pair:
    return Pair(rf"So it is $\boxed{{{answer}}}$.", (gold,), reason)


def placed(completion: str, gold: str, reason: Reason, answer_in: AnswerIn = "last_box") -> Pair:
    return Pair(completion, (gold,), reason, answer_in)


CORRECTED = r"It is \boxed{3}. Wait, that is wrong. It is \boxed{4}."
TOWER = "9^{9^{9^9}}"
PAIRS = (
    # Numbers
    boxed(".5", r"\frac{1}{2}", "right"),
    boxed(r"\frac12", "0.5", "right"),
    boxed(r"\dfrac{2}{4}", r"\tfrac{1}{2}", "right"),
    boxed("142", "142.0", "right"),
    boxed("025", "25", "right"),
    boxed("1234", "1,234", "right"),
    boxed("-7", "7", "wrong"),
    boxed("1/3", "0.333", "wrong"),
    boxed("3.14159", r"\pi", "wrong"),
    boxed(".1", r"10\%", "right"),
    boxed("5.", "5", "right"),
    boxed("5**", "5", "right"),
    placed("**Answer: 5**", "5", "right", "answer_line"),
    placed("Answer: **5.**", "5", "right", "answer_line"),
    placed("Answer: `5`.", "5", "right", "answer_line"),
    placed("<answer>**5**</answer>", "5", "right", "answer_tag"),
    boxed(r"3\frac12", "3.5", "right"),
    boxed("1024", "2^{10}", "right"),
    boxed("6", "3!", "right"),
    boxed("10", r"\binom{5}{2}", "right"),
    boxed("0.001", "10^{-3}", "right"),
    boxed(r"-\infty", r"\infty", "wrong"),
    # Units
    boxed(r"204\text{ minutes}", "204", "right"),
    boxed("5", r"\$5", "right"),
    boxed("90", r"90^\circ", "right"),
    # Roots and expressions
    boxed(r"\sqrt{12}", r"2\sqrt{3}", "right"),
    boxed(r"\frac{1}{\sqrt2}", r"\frac{\sqrt2}{2}", "right"),
    boxed("(x-1)(x+1)", "x^2-1", "right"),
    boxed("x^2+1", "x^2-1", "wrong"),
    boxed("a/b", r"\frac{a}{b}", "right"),
    boxed("4i+3", "3+4i", "right"),
    # Equations and inequalities
    boxed("3", "x=3", "right"),
    boxed("x=3", "3", "right"),
    boxed("y=3", "x=3", "wrong"),
    boxed("y=1+2x", "y=2x+1", "right"),
    boxed(r"(-\infty,3]", r"x\le 3", "right"),
    # Sets, pairs, intervals, matrices
    boxed(r"\{2,1\}", r"\{1,2\}", "right"),
    boxed("3,2", "2,3", "right"),
    boxed("1,2", "1,2,3", "wrong"),
    boxed("[1,2]", "(1,2)", "wrong"),
    boxed("(1, 3)", "(1,3)", "right"),
    boxed("(1,2)", r"\{1,2\}", "right"),  # math-verify does not tell a pair from a set
    boxed(r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", "right"),
    boxed(r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", "wrong"),
    # Words
    boxed("even", r"\text{even}", "right"),
    boxed(r"\text{odd}", r"\text{even}", "wrong"),
    boxed("C", r"\text{(C)}", "right"),
    boxed("B", r"\text{(C)}", "wrong"),
    # Several right answers; a right answer inside a solution
    Pair(r"\boxed{0.02}", ("0.01\n", "0.02\n"), "right"),
    Pair(r"\boxed{0.03}", ("0.01\n", "0.02\n"), "wrong"),
    Pair(r"\boxed{84, 69}", ("$69$,$84$",), "right"),
    Pair(r"\boxed{9}", (r"First \boxed{8}. No: \boxed{9}.",), "right"),
    # Where the answer stands
    placed(CORRECTED, "4", "right"),
    placed(CORRECTED, "3", "right", "first_box"),
    placed(CORRECTED, "4", "wrong", "anywhere"),  # the boxes are one set, as in Open-RS
    placed(r"The final answer is $4$.", "4", "right", "anywhere"),
    placed("4? <answer> 4 </answer>", "4", "right", "answer_tag"),
    placed("**Answer:** 4.", "4", "right", "answer_line"),
    placed(" I do not know.", "3", "no_answer"),
    placed(r"\boxed{3 and I am still writing", "3", "no_answer"),
    # Answers that cannot be compared
    placed("The answer is 4.", "4", "no_answer"),
    boxed("x^2+", "3", "unparsed_answer"),
    boxed("", "3", "unparsed_answer"),
    boxed("3", "x^2+", "unparsed_gold"),
    boxed(TOWER, "3", "timeout"),
)
