"""Problems built for a purpose: where a bound is attained, or a method fails."""
