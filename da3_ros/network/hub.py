"""Downloads official weights from the Hugging Face hub once, at a fixed revision, and checks them.

Checks sizes and hashes of files; ``checkpoint`` checks their contents.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CONFIG, WEIGHTS = "config.json", "model.safetensors"
RESERVE = 64 << 20  # bytes of disk space that stay free
BLOCK = 1 << 18  # bytes read at once
TIMEOUT_S = 20.0  # longest time without data

log = logging.getLogger(__name__)


class HubError(RuntimeError):
    """A download failed, or a file differs from the pinned one; the text is one line."""


@dataclass(frozen=True)
class Pin:
    """The version of a repository's files that this package supports."""

    revision: str
    config_bytes: int
    config_sha256: str
    weights_bytes: int
    weights_sha256: str

    def of(self, name: str) -> tuple[int, str]:
        """Size and SHA-256 of a file."""
        if name == CONFIG:
            return self.config_bytes, self.config_sha256
        return self.weights_bytes, self.weights_sha256


# Revisions and hashes of the official files, by repository.
PINS = {
    "depth-anything/DA3-SMALL": Pin(
        "e08cab65ca0ec38e7826075418411ab90cab4da3",
        1202, "a486e29e82b7ab4a7d4cefc1ea4526cfe2ae438a572c8ca98917cfbcde7447d2",
        137_248_940, "364492e38a3a06d221ac75da7f6621ada3f2361cd24fde11ba79091e9f40efcf",
    ),
    "depth-anything/DA3-BASE": Pin(
        "f4a6c9b3c95e41c82048423d3493a81ec3fa810e",
        1205, "5e34115ebc17bd2d8d43033c5f72e9446ac8833fd61d3fa160b7e67e0bb5b7b5",
        541_518_028, "e01067dc1659613083d9145a9a2547ccdbe6ccbbf83c4fe7b3e8a4e2bdae78b5",
    ),
    "depth-anything/DA3-LARGE-1.1": Pin(
        "0e109ae307c5982f319a67cf6f9f99ccdc0ec97c",
        1213, "744dcaf53859490ed92fc6cb98d68d3daf624b8c54533aaf604bdb53f06321f5",
        1_643_843_860, "739905c423cf0d6ccaf9e61a8401d82ba1ac32d7f4d3ee6dca8f92b377633f64",
    ),
    "depth-anything/DA3-GIANT-1.1": Pin(
        "72ee9f89ce4e50d704e9d55ee9c646ec8dc25a19",
        1880, "74626a50d6dee2a11820291a4305c1a34aa5adc4f7260908bbdbc9a939ba8e93",
        5_422_814_644, "1e47a08338ca73a6d6a21d37fd060b26b993b672bc6ddf6295fe474df2592001",
    ),
    "depth-anything/DA3METRIC-LARGE": Pin(
        "4010e39f3634a45bc60553321fb49fb760bd594e",
        847, "a336f3e76fe375aaae17a9aed9130c9f2aa061535d317ec57dcb2f1f02e1dd53",
        1_336_734_448, "bbea5b0b3ee389849cffa7ddae89de064a90abd2b055fc5aa99aac68db324776",
    ),
    "depth-anything/DA3MONO-LARGE": Pin(
        "f465978e618db8cc79c83b8bbf24964857db1875",
        845, "649809acdfe99631293430bfb8bcd85620a1bba47bb4e27689bd204c645a4204",
        1_336_734_448, "7a799a7f95eb8d4c404c2ca8be3dc3276b350a417ddc4420db72ba850cc0e960",
    ),
    "depth-anything/DA3NESTED-GIANT-LARGE-1.1": Pin(
        "b2359bdf726fb44ef62acca04d629dcf158053e7",
        3113, "09adf89474017e717bc05aa86fd3a378708ba8914b036d61874eced328069468",
        6_759_558_100, "8ebe871a022ed58d2fc8fdfb2ebdb31d57b60fe39611c849095851a7b7c6020c",
    ),
}  # fmt: skip


def cached(repo: str) -> Path | None:
    """The folder with both files in the local hub cache, or None; never downloads.

    The pinned revision is preferred, then the newest one in the cache.
    """
    from huggingface_hub import try_to_load_from_cache

    pin = PINS.get(repo)
    for revision in [pin.revision, None] if pin else [None]:
        paths = [try_to_load_from_cache(repo, n, revision=revision) for n in (CONFIG, WEIGHTS)]
        if all(isinstance(p, str) for p in paths):
            return Path(str(paths[0])).parent
    return None


def fetch(repo: str, folder: Path | None = None) -> Path:
    """Download both files of ``repo`` to the local hub cache or ``folder``; returns their folder.

    Pinned files resume an earlier partial download, and are checked by size and SHA-256 even if
    they exist already; a damaged file is downloaded again. Raises HubError.
    """
    pin = PINS.get(repo)
    if pin is None:
        return _fetch_unpinned(repo, folder)
    folder = folder or cached(repo) or _snapshot(repo, pin)
    _check_room(folder, pin)
    for name in (CONFIG, WEIGHTS):
        _ensure_file(repo, name, pin, folder)
    return folder


def _snapshot(repo: str, pin: Pin) -> Path:
    """The folder in which huggingface_hub looks for the files of one revision."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE)
    return cache / repo_folder_name(repo_id=repo, repo_type="model") / "snapshots" / pin.revision


def _fetch_unpinned(repo: str, folder: Path | None) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        paths = [hf_hub_download(repo, name, local_dir=folder) for name in (CONFIG, WEIGHTS)]
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise HubError(_first_line(error)) from error
    return Path(paths[0]).parent


def _ensure_file(repo: str, name: str, pin: Pin, folder: Path) -> None:
    """Make sure that ``folder`` contains the released file; download it if it does not."""
    from huggingface_hub import constants

    target = folder / name
    if target.is_file():
        fault = _fault(target, name, pin)
        if not fault:
            return
        log.warning("%s is damaged (%s): downloading it again", target, fault)
    if constants.HF_HUB_OFFLINE:
        raise HubError(f"{name} does not exist locally, and HF_HUB_OFFLINE is set")
    part = target.with_name(f"{name}.{pin.revision[:12]}.part")
    url = f"{constants.ENDPOINT}/{repo}/resolve/{pin.revision}/{name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _download(url, part, pin.of(name)[0])
        fault = _fault(part, name, pin)
        if fault:
            part.unlink()
            raise HubError(f"{name} differs from the released file ({fault}): deleted")
        os.replace(part, target)
    except OSError as error:
        raise HubError(f"{name} could not be downloaded ({_first_line(error)})") from error


def _download(url: str, part: Path, size: int) -> None:
    """Download ``url`` from the end of ``part`` on; reconnects as long as new data arrive."""
    from tqdm import tqdm

    with part.open("ab") as file, tqdm(
        desc=url.rpartition("/")[2], total=size, initial=file.tell(), unit="B", unit_scale=True
    ) as bar:  # fmt: skip
        while file.tell() < size:
            before = file.tell()
            fault = _read(url, file, bar)
            if file.tell() == before:
                raise fault or OSError(f"the server stopped after {before} of {size} bytes")


def _read(url: str, file: BinaryIO, bar: Any) -> OSError | None:
    """Append the data of one connection to the file; returns the error that ended it early."""
    request = urllib.request.Request(url, headers={"Range": f"bytes={file.tell()}-"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            if answer.status != 206 and file.tell():  # a server or proxy without ranges
                bar.update(-file.tell())
                file.truncate(0)
            while block := answer.read(BLOCK):
                file.write(block)
                bar.update(len(block))
    except http.client.HTTPException as error:
        return OSError(f"connection lost: {error!r}")
    except OSError as error:
        return error
    finally:
        file.flush()
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _fault(path: Path, name: str, pin: Pin) -> str:
    """Text about a wrong size or hash; empty if the file is correct."""
    size, digest = pin.of(name)
    if path.stat().st_size != size:
        return f"{path.stat().st_size} bytes instead of {size}"
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            found.update(block)
    return "" if found.hexdigest() == digest else f"SHA-256 is {found.hexdigest()}"


def _check_room(folder: Path, pin: Pin) -> None:
    if (folder / WEIGHTS).is_file():
        return
    existing = next(p for p in (folder, *folder.resolve().parents) if p.is_dir())
    begun = sum(p.stat().st_size for p in folder.glob(f"{WEIGHTS}.*.part"))
    free = shutil.disk_usage(existing).free
    if free < pin.weights_bytes - begun + RESERVE:
        raise HubError(
            f"{existing} has {free / 1e9:.2f} GB free, but the weights need "
            f"{pin.weights_bytes / 1e9:.2f} GB: free disk space, or set HF_HOME to another disk"
        )
