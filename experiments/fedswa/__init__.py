"""Experiments of Liu et al., 2025, "Improving Generalization in Federated Learning with Highly
Heterogeneous Data via Momentum-Based Stochastic Controlled Weight Averaging" (FedSWA, FedMoSWA).
"""
