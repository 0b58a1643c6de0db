"""Chapter 2 of Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023.

``iterate_bias``  Figure 2.1 and the growth of SGD's bias
``lower_bound``   FedAvg on the instance of the lower bound
"""
