"""The folder of engines: never half-written, never used damaged, bounded, shared."""

import contextlib
import json
import logging
import os
import tempfile
import threading
import time

import pytest

from da3_ros.backends import engine_cache as module
from da3_ros.backends.engine_cache import UNFINISHED, EngineCache, cache_folder, engine_key
from da3_ros.backends.engine_folder import FORMAT, MANIFEST, sha256

FACTS = {"format": FORMAT, "model": "da3-tiny", "weights": "abc", "size": [42, 56]}


def written(folder, facts=FACTS, size=100):
    """An engine's files without meaning."""
    (folder / "window.bin").write_bytes(os.urandom(size))
    for name in ("window.xml", "golden.npz"):
        (folder / name).write_bytes(b"")
    files = {f.name: sha256(f) for f in folder.iterdir()}
    (folder / MANIFEST).write_text(json.dumps({**facts, "parts": ["window"], "files": files}))


def kept(cache, facts=FACTS, size=100):
    with cache.new_folder() as folder:
        written(folder, facts, size)
        return cache.keep(folder, facts)


def test_an_engine_is_found_by_all_that_it_depends_on(tmp_path):
    cache = EngineCache(tmp_path)
    assert cache.find(FACTS) is None
    path = kept(cache)
    assert cache.find(FACTS) == path
    for name, value in (("weights", "abd"), ("size", [42, 70]), ("model", "da3-small")):
        assert cache.find({**FACTS, name: value}) is None
    assert [p.name for p in tmp_path.iterdir()] == [engine_key(FACTS)]


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}},
        {"files": {}, "parts": []},
        {"files": []},
        {"parts": ["window", "other"]},
        {"parts": "window"},
        {"files": {"window.xml": "0" * 64}},
    ],
)
def test_a_manifest_must_list_the_files_of_an_engine(tmp_path, change, caplog):
    cache = EngineCache(tmp_path)
    manifest = kept(cache) / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    assert cache.find(FACTS) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "damage", ["flipped", "missing", "no manifest", "cut manifest", "endless manifest", "foreign"]
)
def test_a_damaged_engine_is_removed_with_one_line(tmp_path, caplog, damage):
    cache = EngineCache(tmp_path)
    path = kept(cache)
    data, manifest = path / "window.bin", path / MANIFEST
    if damage == "flipped":
        content = bytearray(data.read_bytes())
        content[50] ^= 1
        data.write_bytes(content)
    elif damage == "missing":
        data.unlink()
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "endless manifest":
        manifest.write_text("[" * 200_000)
    elif damage == "cut manifest":
        manifest.write_text(manifest.read_text()[:-5])
    else:
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"weights": "other"}))
    with caplog.at_level(logging.WARNING):
        assert cache.find(FACTS) is None
    assert len(caplog.records) == 1
    assert "it is built again" in caplog.text
    assert not path.exists()
    assert kept(cache) == path == cache.find(FACTS)


def test_a_manifest_cannot_name_files_elsewhere(tmp_path):
    cache = EngineCache(tmp_path / "cache")
    path = kept(cache)
    outside = tmp_path / "outside"
    outside.write_text("x")
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"] = {"../../outside": sha256(outside)}
    (path / MANIFEST).write_text(json.dumps(manifest))
    assert cache.find(FACTS) is None
    assert outside.is_file()


def test_engines_used_longest_ago_go_first(tmp_path):
    cache = EngineCache(tmp_path, most_bytes=3500)
    facts = [{**FACTS, "size": [14, 14 * n]} for n in range(1, 5)]
    paths = []
    for age, one in zip((30, 20, 10), facts, strict=False):
        paths.append(kept(cache, one, size=800))
        os.utime(paths[-1], (1e9 - age, 1e9 - age))
    assert cache.find(facts[0]) == paths[0]  # used now
    newest = kept(cache, facts[3], size=800)
    assert [p.exists() for p in (*paths, newest)] == [True, False, True, True]
    assert sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()) <= 3500


def test_what_is_no_engine_stays(tmp_path):
    cache = EngineCache(tmp_path, most_bytes=10)
    for name in ("my_bag", "building-plans", f"{UNFINISHED}abcd1234", "a" * 32):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.mcap").write_bytes(bytes(1000))
        os.utime(tmp_path / name, (1e9, 1e9))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    kept(cache)
    kept(cache, {**FACTS, "size": [14, 14]})
    names = {p.name for p in tmp_path.iterdir()}
    assert names >= {"my_bag", "building-plans", f"{UNFINISHED}abcd1234", "a" * 32, "link"}
    assert len(names) == 6  # the newest engine alone, and the user's own


def test_an_engine_larger_than_the_bound_is_used_once(tmp_path):
    cache = EngineCache(tmp_path, most_bytes=10)
    assert kept(cache).is_dir()


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_whoever_may_read_the_cache_may_read_its_engines(tmp_path, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert kept(EngineCache(folder)).stat().st_mode & 0o777 == mode


def test_two_builders_of_one_engine_share_the_first(tmp_path):
    cache, barrier, found = EngineCache(tmp_path), threading.Barrier(4), []

    def build():
        with cache.new_folder() as folder:
            written(folder)
            barrier.wait()
            found.append(cache.keep(folder, FACTS))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {tmp_path / engine_key(FACTS)}
    assert [p.name for p in tmp_path.iterdir()] == [engine_key(FACTS)]
    assert cache.find(FACTS) is not None


def test_an_interrupted_build_leaves_nothing(tmp_path):
    cache = EngineCache(tmp_path)
    with contextlib.suppress(KeyboardInterrupt), cache.new_folder() as folder:
        written(folder)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def unfinished(root, name, age):
    """What a killed process leaves."""
    folder = root / f"{UNFINISHED}{name}"
    folder.mkdir()
    (folder / "window.bin").write_bytes(bytes(10))
    os.utime(folder, (time.time() - age,) * 2)
    return folder


@pytest.mark.skipif(module.fcntl is None, reason="needs POSIX locks")
def test_what_killed_builders_left_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for cache in (EngineCache(tmp_path), EngineCache(None)):
        left, young = unfinished(tmp_path, "abcd1234", 100), unfinished(tmp_path, "abcd5678", 1)
        with cache.new_folder() as folder:
            os.utime(folder, (time.time() - 1e6,) * 2)  # old, but its process is at work
            with cache.new_folder():
                assert folder.is_dir()
            assert not left.exists()
            assert young.is_dir()
        young.joinpath("window.bin").unlink()
        young.rmdir()


def test_without_locks_only_very_old_folders_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "fcntl", None)
    old, newer = unfinished(tmp_path, "abcd1234", 1e6), unfinished(tmp_path, "abcd5678", 1000)
    kept(EngineCache(tmp_path))
    assert (old.exists(), newer.exists()) == (False, True)


def test_without_a_cache_an_engine_lasts_as_long_as_its_folder(tmp_path):
    cache = EngineCache(None)
    with cache.new_folder() as folder:
        written(folder)
        assert cache.keep(folder, FACTS) == folder
        assert cache.find(FACTS) is None
    assert not folder.exists()


def test_an_unwritable_cache_is_reported_and_not_needed(tmp_path, caplog):
    file = tmp_path / "file"
    file.write_text("")
    cache = EngineCache(file / "cache")
    with cache.new_folder() as folder:
        written(folder)
        assert cache.keep(folder, FACTS) == folder
    assert "engines are not kept" in caplog.text


def test_a_cache_that_became_read_only_still_gives_its_engines(tmp_path, monkeypatch, caplog):
    cache = EngineCache(tmp_path)
    path, made = kept(cache), tempfile.mkdtemp

    def read_only(*, prefix, dir=None):
        if dir is not None:
            raise PermissionError(13, "Permission denied", str(dir))
        return made(prefix=prefix)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", read_only)
    monkeypatch.setattr(os, "utime", refuse)
    assert cache.find(FACTS) == path
    other = {**FACTS, "size": [14, 14]}
    with cache.new_folder() as folder:
        written(folder, other)
        assert cache.keep(folder, other) == folder
    assert "Permission denied; engines are not kept" in caplog.text


def test_the_folder_follows_the_parameter_and_xdg(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("auto") == tmp_path / "da3_ros" / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", "/home/me")
    assert str(cache_folder("auto")) == "/home/me/.cache/da3_ros/engines"
    assert cache_folder("") is None
    assert str(cache_folder("~/engines")) == "/home/me/engines"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no home folder
    assert cache_folder("auto") is None
    assert "set cache_dir to a folder" in caplog.text
