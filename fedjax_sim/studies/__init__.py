"""Studies that make many runs: values of clients, advice, forks, hypergradients."""
