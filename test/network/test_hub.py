"""Fetching weights, from a server on this machine that stands in for the hub."""

import contextlib
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from da3_ros.cli import main
from da3_ros.network import MODELS, hub

REPO = MODELS["da3-small"].repo
REVISION = "c" * 40
CONFIG = b'{"model_name": "da3-small"}'
WEIGHTS = bytes(range(256)) * 4096  # 1 MiB


def pin_for(config=CONFIG, weights=WEIGHTS):
    digests = [hashlib.sha256(x).hexdigest() for x in (config, weights)]
    return hub.Pin(REVISION, len(config), digests[0], len(weights), digests[1])


class Server:
    """Serves both files as the hub does; ``cut`` ends so many answers after half of the bytes."""

    def __init__(self):
        self.files = {"config.json": CONFIG, "model.safetensors": WEIGHTS}
        self.cut = 0
        self.ranges = []  # of the weights
        self.revisions = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_HEAD(self):
                self.answer(body=False)

            def do_GET(self):
                self.answer(body=True)

            def answer(self, body):
                *_, revision, name = self.path.partition("?")[0].split("/")
                data = outer.files[name]
                outer.revisions.add(revision)
                first = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
                self.send_response(206 if self.headers.get("Range") else 200)
                if self.headers.get("Range"):
                    self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                self.send_header("X-Repo-Commit", REVISION)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(data) - first))
                self.end_headers()
                if not body:
                    return
                if name == "model.safetensors":
                    outer.ranges.append(first)
                    if outer.cut:
                        outer.cut -= 1
                        self.wfile.write(data[first : len(data) // 2])
                        self.close_connection = True
                        return
                with contextlib.suppress(OSError):
                    self.wfile.write(data[first:])

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The stand-in, as the hub of an empty cache."""
    from huggingface_hub import constants

    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setitem(hub.PINS, REPO, pin_for())
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_get_fetches_the_pinned_revision_once(server, capsys):
    """The command fetches the pinned revision once and prints the licence."""
    assert main(["models", "--get", "da3-small"]) == 0
    said = capsys.readouterr().out
    assert "Apache-2.0" in said
    assert "SHA-256 are correct" in said
    assert server.revisions == {REVISION}
    folder = hub.cached(REPO)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    count = len(server.ranges)
    assert main(["models", "--get", "da3-small"]) == 0
    assert len(server.ranges) == count, "what is here is not fetched again"


def test_a_non_commercial_licence_is_shown_before_the_download(server, capsys, monkeypatch):
    monkeypatch.setitem(hub.PINS, MODELS["da3-large"].repo, pin_for())
    assert main(["models", "--get", "da3-large"]) == 0
    assert "no commercial use" in capsys.readouterr().out.splitlines()[0]


def test_lost_connection_is_taken_up_where_it_ended(server):
    server.cut = 1
    assert (hub.fetch(REPO) / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges == [0, len(WEIGHTS) // 2]


def test_download_goes_on_where_an_earlier_command_ended(server, monkeypatch):
    server.cut = 1

    def interrupted(url, file, bar, read=hub._read):
        fault = read(url, file, bar)
        if server.cut == 0 and "safetensors" in url:
            raise KeyboardInterrupt
        return fault

    with monkeypatch.context() as patch:
        patch.setattr(hub, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hub.fetch(REPO)
    assert hub.cached(REPO) is None, "half a file is none"
    assert (hub.fetch(REPO) / "model.safetensors").read_bytes() == WEIGHTS
    assert server.ranges == [0, len(WEIGHTS) // 2]
    assert [p.name for p in hub.cached(REPO).iterdir() if p.suffix == ".part"] == []


def test_a_file_unlike_the_released_one_is_not_kept(server, capsys):
    server.files["model.safetensors"] = WEIGHTS[:-1] + b"x"
    assert main(["models", "--get", "da3-small"]) == 1
    said = capsys.readouterr().err
    assert "differs from the released file" in said
    assert "SHA-256" in said
    assert hub.cached(REPO) is None


def test_damaged_file_in_the_cache_is_fetched_anew(server):
    folder = hub.fetch(REPO)
    (folder / "model.safetensors").resolve().write_bytes(WEIGHTS[:1000])
    assert (hub.fetch(REPO) / "model.safetensors").read_bytes() == WEIGHTS


def test_folder_for_another_machine_holds_both_files(server, tmp_path):
    assert main(["models", "--get", "da3-small", "--to", str(tmp_path / "stick")]) == 0
    for name, data in (("config.json", CONFIG), ("model.safetensors", WEIGHTS)):
        assert (tmp_path / "stick" / name).read_bytes() == data


def test_a_full_disk_is_reported_before_any_download(server, monkeypatch, capsys):
    usage = hub.shutil.disk_usage("/")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert main(["models", "--get", "da3-small"]) == 1
    assert "free disk space" in capsys.readouterr().err
    assert not server.ranges


def test_without_internet_the_error_names_what_to_copy_where(server, capsys):
    server.http.shutdown()
    server.http.server_close()
    assert main(["models", "--get", "da3-small"]) == 1
    said = capsys.readouterr().err
    for part in ("could not be downloaded", "--to FOLDER", "config.json and model.safetensors"):
        assert part in said
    assert "Traceback" not in said


def test_every_model_of_the_hub_is_pinned_with_its_size():
    repos = {spec.repo: spec for spec in MODELS.values() if spec.repo}
    assert set(repos) == set(hub.PINS)
    for repo, pin in hub.PINS.items():
        header = pin.weights_bytes - 4 * repos[repo].parameters
        assert 0 < header < 1e6, "fp32 parameters, and their names in front"
