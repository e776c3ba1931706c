"""Puts realistic load on a server and records what happened. Ranks nothing.

* :mod:`.generator`: ``LoadGenerator``, one window at a time; :mod:`.pairs`: two windows back to back.
* :mod:`.warmup`, :mod:`.sweep`, :mod:`.peak`: what is built of windows.
* :mod:`.honesty`: when a window may be believed; :mod:`.estimators`: how its numbers come about.
* :mod:`.perf_analyzer`: the same load by NVIDIA's tool.
"""
