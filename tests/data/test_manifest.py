"""Fingerprints and the records behind dataset.json."""

import hashlib

import pytest

from surgicalmamba.data import manifest
from surgicalmamba.data.manifest import fingerprint, fingerprints, settings_hash


def test_small_files_are_hashed_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"labels")
    assert (
        fingerprint(tmp_path / "a").sha256 == hashlib.sha256(b"labels").hexdigest()
        and fingerprint(tmp_path / "a").size == 6
    )


@pytest.mark.parametrize("position", [0, 1_000_000, 1_999_999])
def test_large_files_are_hashed_at_both_ends_and_in_between(tmp_path, monkeypatch, position):
    monkeypatch.setattr(manifest, "FULL_HASH_BYTES", 1_000)
    data = bytearray(2_000_000)
    (tmp_path / "a").write_bytes(data)
    before = fingerprint(tmp_path / "a")
    data[position] = 1
    (tmp_path / "a").write_bytes(data)
    assert fingerprint(tmp_path / "a") != before


def test_files_are_named_below_the_source_and_an_image_folder_is_one_entry(tmp_path):
    (tmp_path / "case").mkdir()
    (tmp_path / "case/0.jpg").write_bytes(b"x")
    (tmp_path / "b.csv").write_bytes(b"y")
    first = fingerprints([tmp_path / "case", tmp_path / "b.csv"], tmp_path)
    assert list(first) == ["b.csv", "case"]
    (tmp_path / "case/1.jpg").write_bytes(b"x")
    assert fingerprints([tmp_path / "case"], tmp_path)["case"] != first["case"]


def test_settings_are_hashed_whatever_their_order():
    assert (
        settings_hash({"a": 1, "b": None})
        == settings_hash({"b": None, "a": 1})
        != settings_hash({"a": 1, "b": 0})
    )
