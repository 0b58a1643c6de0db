"""Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020; chapter 3 of Yuan, "On
Principled Local Optimization Methods for Federated Learning", 2023.

``a9a``              section 5: FedAc beside its baselines on logistic regression
``spread``           the same cells with ten seeds: the range of a single one
``beyond``           the same with rates beyond the grid
``agd_instability``  Theorem 3.8 of the thesis: Nesterov's method is not stable
"""
