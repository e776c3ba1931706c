"""Reads a Triton model repository, and edits config text. Changes nothing on disk.

* ``reader``: ``list_models``, ``read_model``, ``read_repository``, ``onnx_path``, ``content_hash``, ``ensembles_using``
* ``config_text``: ``edit_config``, ``config_diff``, ``set_name``, ``without_name``
* ``inspection``: ``inspection_document``, ``plan_possible``

The other modules are parts of these three.
"""
