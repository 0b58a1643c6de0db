"""Continuations of a run from one state under several alternatives."""
