"""Lemmas behind Theorem 1 of FAVANO; symbols are those of :mod:`fedjax_sim.theory.favano`."""
