"""The connector's archive, built once, and connectors deployed by Pulsar's REST interface or by `pulsar-admin`."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from cassandra.cluster import Session

from cdc.rest import rest
from cdc.sandbox import Pulsar, artifacts
from cdc.sandbox.prerequisites import java_home
from source_connector.nar_build import build_nar
from tests.connector_line import ConnectorLine
from tests.data_topic import DataTopic
from tests.events_topic import wait_until
from tests.events_writer import EventsWriter
from tests.local_run import LocalRun
from tests.servers import CassandraServer, PulsarServer

_numbers = itertools.count(1)

DeployConnector = Callable[..., "Connector"]
OpenDataTopic = Callable[[str], DataTopic]
OpenEventsWriter = Callable[..., EventsWriter]
CreateLine = Callable[[str], ConnectorLine]


class Connector:
    """One deployed source, by name; `token` is that of who deploys it, where Pulsar asks for one."""

    def __init__(self, admin_url: str, name: str, token: str = "") -> None:
        self.name = name
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._admin_url = admin_url
        self._url = f"{admin_url}/admin/v3/sources/public/default/{name}"

    def create(self, archive: Path, topic: str, configs: Mapping[str, object], **settings: object) -> None:
        """`sources create` with an uploaded archive."""
        config = {
            "tenant": "public", "namespace": "default", "name": self.name, "topicName": topic,
            "configs": configs, "parallelism": 1, **settings,
        }  # fmt: skip
        with archive.open("rb") as file:
            response = rest().post(
                self._url,
                files={"sourceConfig": (None, json.dumps(config), "application/json"), "data": file},
                timeout=60,
                headers=self._headers,
            )
        assert response.is_success, response.text

    def delete(self) -> None:
        """`sources delete`, and the uploaded package, which would keep the name taken."""
        rest().delete(self._url, headers=self._headers)
        rest().delete(
            f"{self._admin_url}/admin/v3/packages/source/public/default/{self.name}/0",
            timeout=60,
            headers=self._headers,
        )

    def restart(self) -> None:
        """`sources restart`."""
        rest().post(f"{self._url}/restart", headers=self._headers).raise_for_status()

    def status(self) -> dict[str, Any]:
        """The first instance's status; empty while there is none that answers the functions worker."""
        answer = rest().get(f"{self._url}/status", headers=self._headers)
        if (
            answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        ):  # it asks the instance, which may be ending just then
            return {}
        instances = answer.raise_for_status().json()["instances"]
        return cast("dict[str, Any]", instances[0]["status"]) if instances else {}

    def metric(self, name: str) -> float:
        """The sum of one user metric, as the broker's metrics page tells it; 0 while it is not there."""
        page = (
            rest()
            .get(f"{self._admin_url}/metrics/", follow_redirects=True, headers=self._headers)
            .raise_for_status()
            .text
        )
        for line in page.splitlines():
            if line.startswith("pulsar_source_user_metric__sum{"[:-6]) and "_sum{" in line:
                labels, _, value = line.rpartition("}")
                if f'metric="{name}"' in labels and f'/{self.name}"' in labels:
                    return float(value.split()[0])
        return 0.0

    def wait_for_error(self) -> str:
        """What the instance says when it cannot run."""
        found: list[str] = []

        def is_there() -> bool:
            status = self.status()
            exceptions = status.get("latestSourceExceptions", [])
            found[:] = [status.get("error", ""), *(each["exceptionString"] for each in exceptions)]
            return any(found)

        wait_until(is_there, f"an error of {self.name}")
        return "\n".join(found)


@pytest.fixture(scope="session")
def connector_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this checkout, in a folder of this run: another run beside it may build its own."""
    return build_nar(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def deploy_connector(
    connector_archive: Path, cassandra_node: CassandraServer, pulsar: PulsarServer
) -> Iterator[DeployConnector]:
    """Deploy a connector for a table; its data topic is `data-<keyspace>.<table>`. Deleted after the test."""
    deployed: list[Connector] = []

    def deploy(
        keyspace: str, table: str, *, settings: Mapping[str, object] | None = None, **options: object
    ) -> Connector:
        connector = Connector(pulsar.admin_url, f"connector-{next(_numbers)}")
        deployed.append(connector)
        configs = connector_options(cassandra_node, keyspace, table, **options)
        configs = {name: value for name, value in configs.items() if value}  # an empty name leaves an option out
        connector.create(connector_archive, data_topic_name(keyspace, table), configs, **(settings or {}))
        return connector

    yield deploy
    for connector in deployed:
        connector.delete()


@pytest.fixture
def local_run(
    connector_archive: Path, keyspace: str, cassandra_node: CassandraServer, pulsar: PulsarServer, tmp_path: Path
) -> Iterator[LocalRun]:
    """A connector for table `t`, run by hand."""
    options = connector_options(cassandra_node, keyspace, "t")
    run = LocalRun(
        artifacts.pulsar_distribution() / "bin" / "pulsar-admin",
        pulsar.service_url,
        connector_archive,
        data_topic_name(keyspace, "t"),
        options,
        tmp_path / "local.log",
    )
    yield run
    run.kill()


@pytest.fixture(scope="session")
def keep_data_topics(pulsar: PulsarServer) -> None:
    """Topics keep what no subscription holds, for readers that come later."""
    rest().post(
        f"{pulsar.admin_url}/admin/v2/namespaces/public/default/retention",
        json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        timeout=60,
    ).raise_for_status()


@pytest.fixture
def open_data_topic(pulsar: PulsarServer) -> Iterator[OpenDataTopic]:
    """A table's data topic; open it before the connector is deployed, for nothing keeps what no subscription holds."""
    opened: list[DataTopic] = []

    def open_topic(name: str) -> DataTopic:
        opened.append(DataTopic(pulsar.service_url, pulsar.admin_url, f"data-{name}"))
        return opened[-1]

    yield open_topic
    for topic in opened:
        topic.close()


@pytest.fixture
def open_events_writer(cql: Session, pulsar: PulsarServer) -> Iterator[OpenEventsWriter]:
    """A writer of events for a table that exists."""
    opened: list[EventsWriter] = []

    def open_writer(keyspace: str, table: str, **options: Any) -> EventsWriter:
        writer = EventsWriter(cql, pulsar.service_url, pulsar.admin_url, keyspace, table, **options)
        opened.append(writer)
        return writer

    yield open_writer
    for writer in opened:
        writer.close()


@pytest.fixture
def connector_line(
    cql: Session, keyspace: str, open_events_writer: OpenEventsWriter, open_data_topic: OpenDataTopic
) -> CreateLine:
    """Create table `t` of the test's keyspace with this definition, its topics, and what writes and reads them."""

    def create(definition: str) -> ConnectorLine:
        cql.execute(f"CREATE TABLE {keyspace}.t ({definition})")
        return ConnectorLine(cql, keyspace, open_events_writer(keyspace, "t"), open_data_topic(f"{keyspace}.t"))

    return create


def connector_options(node: CassandraServer, keyspace: str, table: str, **options: object) -> dict[str, object]:
    """`--source-config` for a table; further options by name, dots as double underscores; None leaves one out."""
    further = {name.replace("__", "."): value for name, value in options.items()}
    every = {
        "contactPoints": node.address,
        "port": node.native_port,
        "loadBalancing": {"localDc": "datacenter1"},
        "keyspace": keyspace,
        "table": table,
        "python": sys.executable,
        **further,
    }
    return {name: value for name, value in every.items() if value is not None}


def data_topic_name(keyspace: str, table: str) -> str:
    """Where the tests' connectors publish."""
    return f"data-{keyspace}.{table}"


def pulsar_admin(pulsar: Pulsar, *arguments: str) -> str:
    """Run `pulsar-admin` and return what it printed."""
    environment = {**os.environ, "JAVA_HOME": str(java_home())}
    done = subprocess.run(
        [str(pulsar.pulsar_admin), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_until_acknowledged(topic: str, admin_url: str, subscription: str = "sub") -> None:
    """Until the broker holds no unacknowledged message of a partitioned topic for a subscription."""
    url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/partitioned-stats"

    def is_settled() -> bool:
        found = rest().get(url, timeout=30).raise_for_status().json()["subscriptions"][subscription]
        return cast("int", found["msgBacklog"]) == 0

    wait_until(is_settled, f"every message of {topic} acknowledged")
