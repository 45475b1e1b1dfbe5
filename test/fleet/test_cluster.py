"""What a worker takes of machines of different kinds; what is left of killed fleets."""

import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from da3_ros.config import NodeConfig, config_from_parameters
from da3_ros.fleet import cluster as module
from da3_ros.fleet.cluster import Resources, resources_for
from da3_ros.fleet.jobs import FleetError
from da3_ros.fleet.worker import locked


def ray_with(*machines):
    """Ray, as far as it tells of machines."""
    nodes = [{"Resources": m, "Alive": True, "NodeManagerAddress": "127.0.0.1"} for m in machines]
    return SimpleNamespace(nodes=lambda: nodes)


def chosen(*machines, gpus=None, cpus=None, **values):
    return resources_for(
        ray_with(*machines), config_from_parameters(values, NodeConfig), gpus, cpus
    )


@pytest.mark.parametrize(
    ("machines", "wanted"),
    [
        ([{"CPU": 2.0}], Resources(2, 0.0, 1.0)),
        ([{"CPU": 16.0}], Resources(4, 0.0, 0.25)),
        ([{}, {"CPU": 8.0}], Resources(4, 0.0, 0.5)),  # a head without cores
        ([{"CPU": 0.0}, {"CPU": 8.0}], Resources(4, 0.0, 0.5)),
        ([{"CPU": 2.0}, {"CPU": 64.0}], Resources(4, 0.0, 4 / 64)),
        ([{"CPU": 16.0, "GPU": 4.0}], Resources(4, 1.0, 1.0)),
        ([{"CPU": 64.0}, {"CPU": 16.0, "GPU": 2.0}], Resources(8, 1.0, 1.0)),
        ([{"CPU": 1.0, "GPU": 2.0}], Resources(1, 1.0, 1.0)),
    ],
)
def test_a_worker_takes_a_fair_share(machines, wanted):
    assert chosen(*machines) == wanted


def test_what_is_asked_for_counts():
    machine = {"CPU": 16.0, "GPU": 2.0}
    assert chosen(machine, gpus=0.5) == Resources(4, 0.5, 0.5)
    assert chosen(machine, gpus=0) == Resources(4, 0.0, 0.25)
    assert chosen(machine, cpus=3) == Resources(3, 1.0, 1.0)
    assert chosen(machine, device="cpu") == Resources(4, 0.0, 0.25)
    assert chosen(machine, gpus=2) == Resources(16, 2, 1.0)


@pytest.mark.parametrize(
    ("machines", "values", "text"),
    [
        ([{"CPU": 2.0}], {"gpus": 1}, "no machine has the 2 cores and 1 GPUs of one worker"),
        ([{"CPU": 2.0}], {"cpus": 3}, "but 2 cores and 0 GPUs: lower --cpus-per-task"),
        ([{"CPU": 8.0, "GPU": 1.0}], {"device": "cuda:1"}, "set it to cuda"),
        ([{}], {}, "no machine of the cluster has cores"),
        ([], {}, "no machine of the cluster has cores"),
    ],
)
def test_what_no_machine_has_is_refused(machines, values, text):
    with pytest.raises(FleetError, match=text):
        chosen(*machines, **values)


def test_other_addresses_than_the_own_are_refused():
    module._check_loopback(ray_with({"CPU": 1.0}))
    ray = ray_with({"CPU": 1.0})
    ray.nodes()[0]["NodeManagerAddress"] = "192.0.2.7"
    with pytest.raises(FleetError, match=r"would listen on 192\.0\.2\.7"):
        module._check_loopback(ray)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.0 200 OK\r\n\r\nhello"])
def test_a_port_that_is_not_of_ray_is_refused_at_once(monkeypatch, answer):
    """Ray itself tries for more than five minutes."""
    monkeypatch.setattr(module, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def serve():
            connection, _ = server.accept()
            connection.recv(100)
            if answer is not None:
                connection.sendall(answer)
                connection.close()
            ended.wait()
            connection.close()

        ended = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(FleetError, match=f"no Ray cluster at {address}: what listens"):
                module._check_address(address)
        finally:
            ended.set()
            thread.join()


def test_folders_of_killed_fleets_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: "x" * 40)  # too long for sockets
    monkeypatch.setattr(module, "TEMP_PREFIX", f"da3_test_{os.getpid()}_")
    prefix = f"/tmp/{module.TEMP_PREFIX}"
    killed, used, new = (module.Path(f"{prefix}{name}") for name in ("killed", "used", "new"))
    hour_ago = time.time() - 3600
    try:
        for folder in (killed, used, new):
            folder.mkdir()
            (folder / "log").touch()
            if folder != new:
                os.utime(folder, (hour_ago, hour_ago))
        with locked(used), module._temporary_folder() as own:
            assert str(own).startswith(prefix)
            assert (killed.exists(), used.exists(), new.exists()) == (False, True, True)
        assert not own.exists()
    finally:
        for folder in (killed, used, new):
            module.shutil.rmtree(folder, ignore_errors=True)


def test_usage_is_not_reported(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "")  # put back afterwards
    pytest.importorskip("ray")
    module._import_ray(local=True)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
