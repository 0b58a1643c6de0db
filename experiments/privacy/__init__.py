"""Central differential privacy in the setting of pfl-research: accuracy against epsilon."""
