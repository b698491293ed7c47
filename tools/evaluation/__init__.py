"""Scoring a trained model: its loss on a split of a data set, and its accuracy on HellaSwag."""
