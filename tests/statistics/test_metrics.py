"""Metrics out: Prometheus by SHMLOADER_METRICS_PORT, Lightning's callback.  Neither client is needed to run these."""

from __future__ import annotations

import builtins
import importlib
import socket
import sys
import types
import warnings
from typing import Any

import pytest
import torch
from conftest import iterate

import shmloader
from shmloader.statistics import metrics
from shmloader.statistics.metrics import Collector

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]


class Range(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


class Family:
    """Of prometheus_client: a metric, with a sample for each set of labels."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        assert documentation
        self.name, self.labels, self.samples = name, labels, {}  # type: ignore[var-annotated]

    def add_metric(self, labels: list[str], value: float = 0.0, **more: float) -> None:
        assert len(labels) == len(self.labels) and tuple(labels) not in self.samples
        self.samples[tuple(labels)] = more or value


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A double of the client; what it was asked to serve is in `served`."""
    client = types.ModuleType("prometheus_client")
    core = types.ModuleType("prometheus_client.core")
    client.served, client.error, client.returns = [], None, None  # type: ignore[attr-defined]

    class CollectorRegistry:
        def register(self, collector: Any) -> None:
            assert collector.describe() == []
            self.collector = collector

    def start_http_server(port: int, addr: str, registry: Any) -> Any:
        if client.error:  # type: ignore[attr-defined]
            raise client.error  # type: ignore[attr-defined]
        client.served.append((port, addr, registry.collector))  # type: ignore[attr-defined]
        return client.returns  # type: ignore[attr-defined]

    client.CollectorRegistry, client.start_http_server = CollectorRegistry, start_http_server  # type: ignore[attr-defined]
    for name in ("CounterMetricFamily", "GaugeMetricFamily", "SummaryMetricFamily"):
        setattr(core, name, Family)
    monkeypatch.setitem(sys.modules, "prometheus_client", client)
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)
    monkeypatch.setattr(metrics, "_tried_in", None)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return client


def loaded(**options: Any) -> Any:
    loader = shmloader.DataLoader(Range(), batch_size=4, **options)
    iterate(loader)
    return loader


def test_nothing_listens_unless_a_port_is_named(prometheus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHMLOADER_METRICS_PORT", raising=False)
    loaded()
    assert prometheus.served == []


def test_one_server_for_all_loaders(prometheus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_METRICS_PORT", "9123")
    loaders = [loaded(num_workers=1), loaded(num_workers=0)]
    ((port, address, collector),) = prometheus.served
    assert (port, address) == (9123, "127.0.0.1")
    families = {family.name: family for family in collector.collect()}
    mine = [f"Range-{shmloader.statistics.account.account_of(loader).number}" for loader in loaders]
    assert [families["shmloader_batches"].samples[(name,)] for name in mine] == [3, 3]
    assert families["shmloader_samples"].samples[(mine[0],)] == 12
    assert (mine[1],) not in families["shmloader_samples"].samples  # off the ring it cannot be told
    wait = families["shmloader_wait_seconds"].samples[(mine[0],)]
    assert wait["count_value"] == 3 and wait["sum_value"] > 0
    assert families["shmloader_wait_quantile_seconds"].samples[(mine[0], "0.99")] > 0
    assert families["shmloader_worker_busy_seconds"].samples[(mine[0], "0")] > 0
    assert all(name.startswith("shmloader_") for name in families)


class Numbers(torch.utils.data.Dataset):
    """The number of a socket's descriptor, as a worker knows it."""

    def __init__(self, listens: socket.socket) -> None:
        self.listens = listens

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        return self.listens.fileno()


def test_workers_do_not_keep_the_port(prometheus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_METRICS_PORT", "9999")
    with socket.socket() as listens:
        prometheus.returns = types.SimpleNamespace(socket=listens), None
        loaded()  # from the first iterator on
        assert iterate(shmloader.DataLoader(Numbers(listens), num_workers=1, multiprocessing_context="fork")) == [-1]
        assert listens.fileno() >= 0


def test_each_rank_has_a_port(prometheus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHMLOADER_METRICS_PORT", "9123")
    monkeypatch.setenv("SHMLOADER_METRICS_ADDRESS", "0.0.0.0")
    monkeypatch.setenv("LOCAL_RANK", "3")
    loaded()
    assert prometheus.served[0][:2] == (9126, "0.0.0.0")


def test_what_goes_wrong_is_a_warning(prometheus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {
        "9123": (OSError(98, "Address already in use"), "'9123', .*'127.0.0.1', .*Address already in use"),
        "9124": (UnicodeError("label empty or too long"), "label empty"),  # address "a..b"
        "9125": (RuntimeError("can't start new thread"), "can't start new thread"),
        "nine": (None, "PORT='nine'.*invalid literal for int"),
    }
    for port, (error, says) in cases.items():
        monkeypatch.setattr(metrics, "_tried_in", None)
        monkeypatch.setenv("SHMLOADER_METRICS_PORT", port)
        prometheus.error = error
        with pytest.warns(RuntimeWarning, match=says):
            loaded()
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            loaded()  # the warning comes once


def test_the_client_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_tried_in", None)
    monkeypatch.setenv("SHMLOADER_METRICS_PORT", "9123")
    without(monkeypatch, "prometheus_client")
    with pytest.warns(RuntimeWarning, match="no metrics are served: .*ImportError.*prometheus_client"):
        loaded()


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    real = builtins.__import__

    def limited(name: str, *more: Any) -> Any:
        if name.split(".")[0] in packages:
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", limited)


def test_by_the_client_itself() -> None:
    client = pytest.importorskip("prometheus_client")
    loader = loaded(num_workers=1)
    registry = client.CollectorRegistry()
    registry.register(Collector(lambda: [("mine", loader.stats())]))
    text = client.generate_latest(registry).decode()
    assert 'shmloader_batches_total{loader="mine"} 3.0' in text and "shmloader_wait_seconds_count" in text


# -------------------------------------------------------------------------------------------------------- Lightning


class Logger:
    def __init__(self) -> None:
        self.logged: list[tuple[dict[str, float], int]] = []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((metrics, step))


class Trainer:
    """Of Lightning: what a callback asks it."""

    def __init__(self, loader: Any, every: int = 2, accumulate: int = 1) -> None:
        self.train_dataloader, self.log_every_n_steps, self.accumulate = loader, every, accumulate
        self.global_step, self.loggers = 0, [Logger()]

    def fit(self, callback: Any) -> list[tuple[dict[str, float], int]]:
        callback.on_train_start(self, None)
        for number, batch in enumerate(self.train_dataloader, 1):
            self.global_step = number // self.accumulate
            callback.on_train_batch_end(self, None, None, batch, self.global_step)
        return self.loggers[0].logged


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """shmloader.callbacks, over a double of Lightning."""
    for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["lightning.pytorch.callbacks"].Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "shmloader.callbacks", raising=False)
    yield importlib.import_module("shmloader.callbacks")
    sys.modules.pop("shmloader.callbacks", None)


def test_lightnings_callback(callbacks: Any) -> None:
    loader = shmloader.DataLoader(Range(), batch_size=2, num_workers=1)
    logged = Trainer(loader).fit(callbacks.LoaderStats())
    assert [step for _, step in logged] == [2, 4, 6]
    assert all(metrics["loader/batches"] == 2 and "loader/input_wait" in metrics for metrics, _ in logged)


def test_a_step_of_several_batches_is_logged_once(callbacks: Any) -> None:
    loader, callback = shmloader.DataLoader(Range(), num_workers=1), callbacks.LoaderStats()
    for _ in range(2):  # a second run, whose steps have the same numbers
        logged = Trainer(loader, accumulate=3).fit(callback)
        assert [step for _, step in logged] == [2, 4]
        assert logged[1][0]["loader/batches"] == 6


def test_loaders_in_what_a_trainer_has(callbacks: Any) -> None:
    a, b = (shmloader.DataLoader(Range()) for _ in range(2))
    combined = types.SimpleNamespace(flattened=[a, b])
    for what in ([a, b], {"x": a, "y": [b]}, combined):
        assert list(callbacks.loaders_in(what)) == [a, b]
    assert list(callbacks.loaders_in(torch.utils.data.DataLoader(Range()))) == []
    trainer = Trainer([a, b], every=1)
    trainer.global_step = 1
    callbacks.LoaderStats("in/").on_train_batch_end(trainer, None)
    ((metrics, step),) = trainer.loggers[0].logged
    assert step == 1 and {"in/0/batches", "in/1/batches"} <= set(metrics)


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shmloader.callbacks", raising=False)
    without(monkeypatch, "lightning", "pytorch_lightning")
    with pytest.raises(ImportError, match=r"needs lightning or pytorch_lightning.*loader\.stats\('last'\)\.to_dict"):
        importlib.import_module("shmloader.callbacks")
