"""Questions that need thousands of runs with paired randomness: one study per question.

A study ``x`` is ``python -m experiments.questions.x`` (settings, the expected answers with their
reasons, runs) and ``x_report``, whose ``STUDY`` says how report, figure and page follow from the
files under ``experiments/results/questions/x``.  ``python -m experiments.questions`` writes the
pages of docs/questions.
"""
