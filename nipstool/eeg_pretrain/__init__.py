"""EEG pretraining on whatever recordings there are: reading, placing, labelling and scoring them.

>>> from nipstool.eeg_pretrain.scoring import events
>>> round(events([(600, 660)], [(575, 580), (2000, 2010)], 3600.0).f1, 4)
0.6667
"""
