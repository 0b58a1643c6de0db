"""Language models: DiLoCo beside data-parallel AdamW."""
