"""The shipped data sets (*.parquet), how they are made (make.py) and what their columns hold (README.md)."""
