"""Dhasade, Kremer and Renard, "An Insight into the impact of Data Heterogeneity on the performance
of the FedAvg algorithm".

``perceptron``  Experiments 1 and 2: one client that differs
``femnist``     Experiment 3: partitions by writer and at random
"""
