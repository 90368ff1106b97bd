"""Everything left of the checkpoint: collection, data sets, weak labels, training, evaluation.

Not part of the installed package; run it from the repository, for example
``python -m training.collect cartpole --preset laptop``.
"""
