"""A candidate beside the baseline on live servers, step by step, judged at each, promoted or rolled back.

* :mod:`plan`: what is compared, how, and by which margins; written once, read at every start.
* :mod:`evidence` and :mod:`judge`: what was seen, and what it means. Pure.
* :mod:`dual`, :mod:`answers`, :mod:`watch`, :mod:`arms`: requests to both, answers compared, servers observed.
* :mod:`proxy`, :mod:`nginx`: who splits the users' traffic.
* :mod:`second`: the second model name on one server. :mod:`guard`: takes everything back when its owner is gone.
* :mod:`state`, :mod:`run`, :mod:`commands`: the memory, the loop, the command line.

Spine: imports stages and records; nothing but the command line imports it.
"""
