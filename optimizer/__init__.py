"""Tunes Triton Inference Server model repositories at the serving level.

The package reads like its job: ``repository`` reads, ``routes`` and ``search`` propose, ``engines`` build, ``sandbox``
deploys, ``load`` measures, ``accuracy`` validates, ``judge`` decides, ``apply`` writes back; ``study`` is the sentence.
"""

__version__ = "0.1.0"
