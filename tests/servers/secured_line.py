"""An agent and a connector between servers that require credentials, and their secrets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pulsar as pulsar_client
from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from tests.fixtures.connector import Connector
from tests.servers.certificates import STORE_PASSWORD
from tests.servers.secured_servers import (
    ADMIN_ROLE,
    DATA_TOPIC,
    ROLE,
    TABLE,
    SecuredSandbox,
    agent_options,
    source_options,
)
from tests.servers.security_settings import token

__all__ = ["EXPIRED", "NODE_PASSWORD", "SECRETS", "TOKEN", "SecuredLine", "running_line"]

NODE_PASSWORD: Final = "open sesame"
TOKEN: Final = token(ROLE)
EXPIRED: Final = token(ROLE, ends_at_s=1_700_000_000)
# Texts that must not appear anywhere. Of a token, only the last part, the signature, is secret.
SECRETS: Final = (
    NODE_PASSWORD,
    TOKEN.rpartition(".")[2],
    EXPIRED.rpartition(".")[2],
    token(ADMIN_ROLE).rpartition(".")[2],
    STORE_PASSWORD,
)


@dataclass(frozen=True, kw_only=True)
class SecuredLine:
    """A running agent and connector. `records` reads the data topic."""

    agent: AgentProcess
    connector: Connector
    records: pulsar_client.Consumer


@contextmanager
def running_line(
    servers: SecuredSandbox, session: Session, secret_files: Mapping[str, Path], archive: Path, folder: Path
) -> Iterator[SecuredLine]:
    """Run agent and connector of the table `secured.t`, and wait until a first row has arrived. `folder` is the
    agent's."""
    options = agent_options(servers, secret_files)
    more = {"spillDir": str(folder / "spill"), "archiveUrl": str(folder / "archive"), "includeTables": TABLE}
    agent = AgentProcess.for_node(servers.node, servers.pulsar, folder, **{**options, **more})
    client = pulsar_client.Client(
        str(options["pulsarServiceUrl"]),
        authentication=pulsar_client.AuthenticationToken(TOKEN),
        tls_trust_certs_file_path=str(servers.authority.trusted),
        tls_validate_hostname=True,
        logger=pulsar_client.FileLogger(pulsar_client.LoggerLevel.Error, os.devnull),
    )
    records = client.subscribe(DATA_TOPIC, "test", initial_position=pulsar_client.InitialPosition.Earliest)
    connector = Connector(servers.pulsar.admin_url, "secured", token(ADMIN_ROLE))
    connector.create(archive, DATA_TOPIC, source_options(servers, secret_files))
    agent.start()
    session.execute(f"INSERT INTO {TABLE} (pk, v) VALUES (1, 'first')")
    assert b"first" in records.receive(120_000).data()
    yield SecuredLine(agent=agent, connector=connector, records=records)
    connector.delete()
    client.close()
    assert agent.stop() == 0, agent.log_tail()
