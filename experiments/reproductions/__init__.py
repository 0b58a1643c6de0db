"""Every table, figure and claim of the papers beside our results, as one generated page."""
