"""Lemmas behind Theorem 5.2 and Theorem H.1; symbols are those of
:mod:`fedjax_sim.theory.fedswa`.
"""
