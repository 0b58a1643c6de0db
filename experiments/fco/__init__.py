"""Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021; chapter 4 of Yuan, "On Principled
Local Optimization Methods for Federated Learning", 2023.

``lasso``, ``lowrank``, ``fmri``, ``emnist``  the four tasks (section 4.5)
``primal_averaging``  Figure 1.1
``theory``            Theorems 4.3, 4.4 and 4.7 on quadratics
``redraw``            all reports and figures from the kept CSV and JSON files
"""
