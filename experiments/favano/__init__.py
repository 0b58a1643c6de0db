"""Experiments of Leconte et al., "FAVANO: Federated AVeraging with Asynchronous Nodes" (arXiv
2305.16099).
"""
