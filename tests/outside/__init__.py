"""Answers to the exercises by someone who had not read the grader: right ones and plausible slips.

Each table maps a puzzle to ``{"right": [answer, ...], "wrong": [(answer, words), ...]}``; `words`
is a pattern that the grader's reason must match, nearly always chosen before the grader was run.
"""
