"""Inputs, references, and how far answers may be from them. Accuracy decides who may compete.

=========================  ====================================================================================
:mod:`inputs`              samples from files; with ``synthetic`` random ones, with ``splitting`` two disjoint sets
:mod:`references`          expected outputs and the check of the reference; ``kept_references`` on disk
:mod:`tolerances`          what users write; ``suggestion`` proposes one
:mod:`validator`           answers against expected outputs: defects, then ``metrics`` over a ``comparison``
:mod:`requests`            which requests bring batching faults to light
:mod:`under_load`          responses kept while a load ran
:mod:`hard_cases`          which samples are hard, and what a number of samples supports
=========================  ====================================================================================
"""
