"""Labbi et al., "On Global Convergence Rates for Federated Policy Gradient under Heterogeneous
Environment", arXiv 2505.23459 (version 1), Appendix F.

``rates``  FedAvg on families with a Lojasiewicz inequality, beside the bounds
"""
