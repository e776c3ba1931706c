"""Routes: knob databases, the expression language, its expansions, and the joint space over all layers.

Pure: values in, values out. ``knobs`` and ``expression`` know TensorRT's build-route language, ``expansion`` its three
search orders, ``serving`` Triton's own knobs, ``space`` puts the layers together.
"""
