"""magika's feature rule, against values that its own package (1.0.3) computed, and against the rule step by step."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from examples.magika_features import features, file_features, kind_of, real_file_samples, real_files
from optimizer.errors import InputError

OF_THE_PACKAGE = "919ba971aad905357c81d46613e5ef3614b93c5b073ac91ed7d5f27e69fec1dc"
"""sha256 over ``Magika._extract_features_from_seekable`` (beg and end, INT32) of :func:`contents`, ``none`` where
magika answers without its model."""


def contents() -> Iterator[bytes]:
    """400 contents around every corner of the rule: lengths at 8, 1024, 2048, 4096 and blanks of every kind."""
    generator = random.Random(5)
    for index in range(400):
        size = generator.choice(
            [0, 1, 7, 8, 9, 100, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 9000]
        )
        body = (
            bytes(generator.choices(b" \t\n\r\x0b\x0c\x00\x85\xa0abc", k=size))
            if index % 2
            else generator.randbytes(size)
        )
        blanks = bytes(generator.choices(b" \t\n\r\x0b\x0c", k=generator.choice([0, 0, 3, 1000, 4096, 5000])))
        yield blanks * (index % 3 == 0) + body + blanks * (index % 5 == 0)


def test_equals_the_package(tmp_path: Path) -> None:
    digest = hashlib.sha256()
    path = tmp_path / "content"
    for content in contents():
        values = features(content)
        digest.update(b"none" if values is None else values.tobytes())
        path.write_bytes(content)
        of_file = file_features(path)
        assert (of_file is None) == (values is None)
        assert values is None or np.array_equal(of_file, values)
    assert digest.hexdigest() == OF_THE_PACKAGE


def test_the_rule_step_by_step() -> None:
    assert features(b"  1234567") is None
    # Only the left is stripped before the bytes are counted.
    assert features(b"  1234567 ") is not None
    values = features(b"\n\tabcdefgh \n")
    assert values is not None
    assert values.dtype == np.int32
    assert values[:12].tolist() == [*b"abcdefgh \n", 256, 256]
    assert values[-11:].tolist() == [256, *b"\n\tabcdefgh"]
    long = features(b"A" * 5000 + b"B" * 5000)
    assert long is not None
    assert long.tolist() == [65] * 1024 + [66] * 1024
    # Only 4096 bytes are read from each end: what follows more blanks than that is not seen.
    assert features(b" " * 4096 + b"text that is long enough") is None


def test_real_files_come_in_the_same_order_and_of_many_kinds(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"f{index}.{'py' if index % 4 else 'TXT'}").write_bytes(f"content number {index}".encode())
    (tmp_path / "link.py").symlink_to(tmp_path / "f1.py")
    (tmp_path / "short.py").write_bytes(b"short")
    (tmp_path / "twin.py").write_bytes(b"content number 1")
    first = real_file_samples(40, seed=3, roots=[tmp_path])
    assert [s.id for s in first.samples] == [s.id for s in real_file_samples(40, seed=3, roots=[tmp_path]).samples]
    assert [s.id for s in first.samples] != [s.id for s in real_file_samples(40, seed=4, roots=[tmp_path]).samples]
    # One of every kind in turn.
    assert sum("txt" in sample.tags for sample in first.samples[:10]) == 5
    assert len({sample.content_hash for sample in first.samples}) == 40
    assert first.samples[0].inputs["bytes"].shape == (1, 2048)
    with pytest.raises(InputError, match="found 40 usable files, 41 are wanted"):
        real_file_samples(41, roots=[tmp_path])
    assert len(list(real_files([tmp_path]))) == 42


def test_kinds_are_suffixes_that_look_like_one() -> None:
    assert [kind_of(Path(name)) for name in ("a.PY", "libc.so.6", "README", "x.7z", ".bashrc", "a.b~")] == [
        "py", "none", "none", "7z", "none", "none",
    ]  # fmt: skip
