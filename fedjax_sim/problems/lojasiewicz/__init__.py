"""Problems that satisfy a Lojasiewicz inequality."""
