"""Makes and ends each kind of fault. A strike returns when the fault is over; the struck parts may still be
recovering."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import psutil

from cdc.agent_process import AgentProcess
from cdc.sandbox import SandboxError
from tests.fault_kit.data_topic import DataTopicAdmin
from tests.fault_kit.disks import HALF_A_SEGMENT, NO_BYTES, cdc_raw_filled, failed_moves, files_limited, fill_segments
from tests.fault_kit.events_topic import EventsTopicAdmin
from tests.fault_kit.index_files import disturb_index
from tests.fault_kit.kinds import FaultKind
from tests.fault_kit.line import FaultLine, wait_for
from tests.fault_kit.plan import Fault
from tests.fault_kit.sessions import session_of
from tests.fault_kit.tables import KEYSPACE, PARTITIONED, RECREATED, TRACKED, TRUNCATED
from tests.fault_kit.unloads import unload_something
from tests.fault_kit.workload import Failures

__all__ = ["Strikes", "table_of"]

_START_S: Final = 600.0
_STOP_S: Final = 180.0
_CLOCK_STEPS_S: Final = (-3600.0, -61.0, -0.5, 0.5, 61.0, 3600.0)
_LATE_S: Final = 0.15
_LOOK_S: Final = 0.1
# The share of `cdc_raw` at which the agent has begun to off-load, and Cassandra still accepts writes.
_NEARLY_FULL: Final = 0.8
_FINISHED_SEGMENTS: Final = 3
_SPILL_S: Final = 60.0

# Longer than the Cassandra driver leaves a connection idle, and longer than a source that was just killed takes to come
# back on a busy machine.
_CUT_S: Final = 300.0

# Pulsar's producers check once a minute how many partitions a topic has.
_NOTICED_S: Final = 150.0
_MOST_ADDED: Final = 3

_UNLOADS: Final = 4

# The connector uses a refused level again after a minute. It reports its counts every 5 s.
_REFUSED_S: Final = 120.0

_TRUNCATE_S: Final = 60.0

Strike = Callable[[Fault], int | None]


def table_of(fault: Fault) -> str:
    """The table whose events topic is struck. Tables that are dropped and created again are left out, because a gap has
    only the table's id at that time. Truncated tables are left out, too: see TRUNCATED."""
    tables = [table for table in TRACKED if table not in {RECREATED, *TRUNCATED}]
    return tables[int(fault.choice * len(tables))]


class Strikes:
    """Strikes faults at a line. `before_strike` returns when changes are in flight; `on_strike` is called with each
    fault when it strikes."""

    def __init__(
        self, line: FaultLine, before_strike: Callable[[], None], on_strike: Callable[[Fault, str], None]
    ) -> None:
        self._line = line
        self._before_strike = before_strike
        self._on_strike = on_strike
        self._agent_locks = [threading.RLock() for _ in line.agents]
        self._connector_lock = threading.RLock()
        self._server_locks = [threading.RLock() for _ in line.sandbox.nodes]
        self._second_agents = 0
        self._strikes: Final[dict[FaultKind, Strike]] = {
            FaultKind.AGENT_KILL: self._kill_agent,
            FaultKind.AGENT_RESTART: self._restart_agent,
            FaultKind.CHILD_KILL: lambda fault: self._kill_connector(fault, self._line.children),
            FaultKind.HOST_KILL: lambda fault: self._kill_connector(fault, self._line.hosts),
            FaultKind.PULSAR_KILL: self._kill_pulsar,
            FaultKind.CASSANDRA_KILL: self._kill_cassandra,
            FaultKind.STANDSTILL: self._stand_still,
            FaultKind.NETWORK_AWAY: self._network_away,
            FaultKind.NETWORK_DELAY: self._network_delay,
            FaultKind.NETWORK_CUT: self._network_cut,
            FaultKind.DISK_CDC_RAW: self._fill_cdc_raw,
            FaultKind.DISK_OFFSETS: self._fill_offsets,
            FaultKind.DISK_SPILL: self._fill_spill,
            FaultKind.IDX_TORN: self._disturb_index,
            FaultKind.IDX_EMPTY: self._disturb_index,
            FaultKind.IDX_SHRUNK: self._disturb_index,
            FaultKind.CLOCK_STEP: self._step_clock,
            FaultKind.TWO_AGENTS: self._two_agents,
            FaultKind.SUBSCRIPTION_REMOVED: self._remove_subscription,
            FaultKind.TOPIC_DELETED: self._delete_topic,
            FaultKind.BUNDLE_UNLOADED: self._unload,
            FaultKind.PARTITIONS_ADDED: self._add_partitions,
            FaultKind.LEVEL_DISALLOWED: self._disallow_levels,
            FaultKind.REPLICA_STOPPED: self._stop_replica,
            FaultKind.TABLE_TRUNCATED: self._truncate,
            FaultKind.RESTART_ALL: self._restart_all,
        }

    def strike(self, fault: Fault) -> int | None:
        """Make the fault and end it. Return the count of what it broke, for the kinds in COUNTED.

        Raises SandboxError and FaultRunError when a part does not come back.
        """
        return self._strikes[fault.kind](fault)

    def _struck(self, fault: Fault, text: str = "") -> None:
        self._before_strike()
        self._on_strike(fault, text)

    def _agent(self, fault: Fault) -> tuple[AgentProcess, threading.RLock]:
        return self._line.agents[fault.node - 1], self._agent_locks[fault.node - 1]

    def _cdc_raw(self, fault: Fault) -> Path:
        return self._line.sandbox.nodes[fault.node - 1].cdc_raw

    def _kill_agent(self, fault: Fault) -> None:
        agent, lock = self._agent(fault)
        with lock:
            self._struck(fault)
            agent.kill()
            time.sleep(fault.length_s)
            agent.launch()
            # In the other cases the next fault may strike an agent that is still starting.
            if fault.choice < 0.7:
                self._line.wait_for_agent(agent)

    def _restart_agent(self, fault: Fault) -> None:
        agent, lock = self._agent(fault)
        with lock:
            self._struck(fault)
            code = agent.stop(_STOP_S)
            time.sleep(fault.length_s)
            agent.launch()
            self._line.wait_for_agent(agent)
        if code not in {0, -signal.SIGTERM, -signal.SIGKILL}:  # the signal may have come before its handler was set
            raise SandboxError(f"an agent ended with exit code {code} at SIGTERM:\n{agent.log_tail()}")

    def _kill_connector(self, fault: Fault, find: Callable[[], list[psutil.Process]]) -> None:
        with self._connector_lock:
            found: list[psutil.Process] = []

            def is_there() -> bool:
                found[:] = _drawn(fault, find())
                return bool(found)

            wait_for(is_there, f"{fault.kind}: the process is there", _START_S)
            # The kill may come while the process starts, or at any moment of its work.
            time.sleep(fault.length_s)
            self._struck(fault)
            with suppress(psutil.NoSuchProcess):
                found[0].kill()
            wait_for(lambda: not found[0].is_running(), f"{fault.kind}: the process has ended", 30)

    def _kill_pulsar(self, fault: Fault) -> None:
        with self._connector_lock, self._line.pulsar_lock:
            self._struck(fault)
            self._line.sandbox.pulsar.kill()
            time.sleep(fault.length_s)
            self._line.sandbox.pulsar.start()

    def _kill_cassandra(self, fault: Fault) -> None:
        node = self._line.sandbox.nodes[fault.node - 1]
        with self._server_locks[fault.node - 1]:
            self._struck(fault)
            node.kill()
            time.sleep(fault.length_s)
            node.start()

    def _restart_all(self, fault: Fault) -> None:
        """Kill everything at once, and start it in the order of the target."""
        line = self._line
        with self._connector_lock, line.pulsar_lock:
            for lock in (*self._agent_locks, *self._server_locks):
                lock.acquire()
            try:
                self._struck(fault)
                for server in (line.sandbox.pulsar, *line.sandbox.nodes):
                    server.kill()
                for agent in line.agents:
                    agent.kill()
                self._start_in_order(fault)
            finally:
                for lock in (*self._agent_locks, *self._server_locks):
                    lock.release()

    def _start_in_order(self, fault: Fault) -> None:
        line = self._line
        servers: dict[str, list[Callable[[], None]]] = {
            "agent": [agent.launch for agent in line.agents],
            "pulsar": [line.sandbox.pulsar.start],
            "cassandra": [node.start for node in line.sandbox.nodes],
        }
        failures: list[SandboxError] = []

        def start(part: str) -> None:
            try:
                for each in servers[part]:
                    each()
            except SandboxError as error:
                failures.append(error)

        threads = [threading.Thread(target=start, args=(part,)) for part in fault.target.split("-")]
        for thread in threads:
            thread.start()
            # For half of the faults, wait until a part has started. For the others, start the next part a moment later.
            thread.join(None if fault.choice < 0.5 else fault.length_s)
        for thread in threads:
            thread.join()
        for failure in failures:
            raise failure

    def _stand_still(self, fault: Fault) -> None:
        self._pids(fault)  # waits for a process that is starting
        self._struck(fault)
        pids = self._pids(fault)
        for pid in pids:
            self._line.signal(pid, signal.SIGSTOP)
        time.sleep(fault.length_s)
        for pid in pids:
            self._line.signal(pid, signal.SIGCONT)

    def _pids(self, fault: Fault) -> list[int]:
        line = self._line
        match fault.target:
            case "agent":
                return [line.agents[fault.node - 1].pid]
            case "pulsar":
                return [line.sandbox.pulsar.pid]
            case "cassandra":
                return [line.sandbox.nodes[fault.node - 1].pid]
        found: list[int] = []

        def is_there() -> bool:
            processes = line.children() if fault.target == "child" else line.hosts()
            found[:] = [each.pid for each in _drawn(fault, processes)]
            return bool(found)

        wait_for(is_there, f"{fault.kind}: the {fault.target} is there", _START_S)
        return found

    def _network_away(self, fault: Fault) -> None:
        self._struck(fault)
        for proxy in self._line.proxies[fault.target]:
            if fault.choice < 0.5:
                proxy.go_away()
            else:
                proxy.stand_still()
        time.sleep(fault.length_s)
        self._heal(fault)

    def _network_delay(self, fault: Fault) -> None:
        self._struck(fault)
        for proxy in self._line.proxies[fault.target]:
            proxy.delay(_LATE_S)
        time.sleep(fault.length_s)
        self._heal(fault)

    def _network_cut(self, fault: Fault) -> int:
        """Cut connections, and wait until at least one was cut, because a connection may be idle for a while."""
        proxies = self._line.proxies[fault.target]
        before = sum(proxy.connections_cut for proxy in proxies)
        self._struck(fault)
        deadline = time.monotonic() + _CUT_S
        for proxy in proxies:
            proxy.cut()
        time.sleep(fault.length_s)
        while (cut := sum(proxy.connections_cut for proxy in proxies) - before) == 0 and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self._heal(fault)
        return cut

    def _heal(self, fault: Fault) -> None:
        for proxy in self._line.proxies[fault.target]:
            proxy.heal()

    def _fill_cdc_raw(self, fault: Fault) -> None:
        self._struck(fault)
        with cdc_raw_filled(self._cdc_raw(fault), 1.0):
            time.sleep(fault.length_s)

    def _fill_spill(self, fault: Fault) -> int:
        """Make the copies of segments fail. For half of the faults they fail at the first byte, for the others in the
        middle.

        Then wait until the copies have succeeded.
        """
        agent, lock = self._agent(fault)
        limit = NO_BYTES if fault.choice < 0.5 else HALF_A_SEGMENT
        (to_pulsar,) = self._line.proxies["agent-pulsar"]
        with lock, session_of(self._line) as session:
            self._line.wait_for_agent(agent)
            before = failed_moves(agent)
            self._struck(fault)
            to_pulsar.stand_still()
            try:
                with cdc_raw_filled(self._cdc_raw(fault), _NEARLY_FULL):
                    with files_limited(agent, limit):
                        fill_segments(session, _FINISHED_SEGMENTS)
                        time.sleep(fault.length_s)
                        failed = self._wait_for_failed_moves(agent, before)
                    time.sleep(fault.length_s)
            finally:
                to_pulsar.heal()
            halves = self._line.spill_folder(agent.directory)
            wait_for(lambda: not list(halves.glob("*.tmp")), f"no half of a segment is in {halves}", _SPILL_S)
        return failed

    def _wait_for_failed_moves(self, agent: AgentProcess, before: int) -> int:
        """Wait for a failed move, but not too long, and return how many failed. The agent looks every second, or less
        often when it is busy."""
        deadline = time.monotonic() + (_SPILL_S if self._line.spill is not None else 0.0)
        while (failed := failed_moves(agent) - before) == 0 and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return failed

    def _fill_offsets(self, fault: Fault) -> None:
        agent, lock = self._agent(fault)
        with lock:
            self._struck(fault)
            with files_limited(agent, NO_BYTES):
                time.sleep(fault.length_s)

    def _disturb_index(self, fault: Fault) -> None:
        self._before_strike()  # before it reads the index, so that it does not restore outdated content
        disturb_index(self._cdc_raw(fault), fault.kind, fault.length_s, lambda text: self._on_strike(fault, text))

    def _step_clock(self, fault: Fault) -> None:
        step_s = _CLOCK_STEPS_S[int(fault.choice * len(_CLOCK_STEPS_S))]
        self._struck(fault, f"by {step_s:g} s")
        self._line.clock.step(step_s)
        time.sleep(fault.length_s)
        if fault.choice * 100 % 1 < 0.5:
            self._line.clock.step(0.0)

    def _remove_subscription(self, fault: Fault) -> None:
        topic = EventsTopicAdmin(self._line, table_of(fault))
        topic.wait_until_whole()
        self._end_connector(fault)
        self._struck(fault, f"of {topic.table}")
        topic.remove_subscription()
        topic.wait_until_whole()

    def _delete_topic(self, fault: Fault) -> None:
        """Delete the topic. Its events are read just before, for the oracle. Later events are lost, and a gap must
        report them."""
        topic = EventsTopicAdmin(self._line, table_of(fault))
        topic.wait_until_whole()
        self._end_connector(fault)
        kept = topic.events()
        self._struck(fault, f"of {topic.table}")
        self._line.deleted.setdefault(topic.table, []).extend(kept)
        topic.delete()
        topic.wait_until_whole()

    def _unload(self, fault: Fault) -> int:
        """Unload a bundle or a partition of an events topic, several times at random moments. Return how often Pulsar
        did it."""
        drawn = random.Random(fault.choice)
        with self._connector_lock:
            self._struck(fault)
            unloaded = 0
            for _ in range(_UNLOADS):
                time.sleep(drawn.uniform(0.0, 2 * fault.length_s / _UNLOADS))
                unloaded += unload_something(self._line, drawn)
            return unloaded

    def _add_partitions(self, fault: Fault) -> int:
        """Add partitions. When the producers notice them, later records of a key may be in another partition than
        earlier ones."""
        topic = DataTopicAdmin(self._line, PARTITIONED[int(fault.choice * len(PARTITIONED))])
        before = topic.partitions()
        after = before + 1 + int(fault.choice * 100 % 1 * _MOST_ADDED)
        self._struck(fault, f"{topic.table}: {before} become {after}")
        topic.set_partitions(after)
        return topic.wait_for_records(range(before, after), _NOTICED_S)

    def _disallow_levels(self, fault: Fault) -> int:
        """Disallow the level ALL, and for half of the faults also LOCAL_QUORUM, the level of all other reads.

        The connector does not use a refused level for a minute, so it may take that long until a read is refused.
        """
        levels = ("ALL",) if fault.choice < 0.5 else ("ALL", "LOCAL_QUORUM")
        self._struck(fault, ", ".join(levels))
        known, refused = self._refused(), 0.0
        deadline = time.monotonic() + _REFUSED_S
        while not refused and time.monotonic() < deadline:
            self._set_disallowed(fault, levels)  # set each time, because a node forgets it at a restart
            time.sleep(fault.length_s)
            before, known = known, self._refused()
            refused += max(0.0, known - before)  # the count is less than before if an instance was restarted
        wait_for(lambda: self._set_disallowed(fault, ()), f"{', '.join(levels)}: allowed again", _START_S)
        return int(refused)

    def _refused(self) -> float:
        try:
            return self._line.metric("levels_refused")
        except httpx.HTTPError:
            return 0.0

    def _set_disallowed(self, fault: Fault, levels: Sequence[str]) -> bool:
        """Set the guardrail. Return False if the node does not answer."""
        try:
            self._line.sandbox.nodes[fault.node - 1].disallow_read_levels(*levels)
        except SandboxError:
            return False
        return True

    def _stop_replica(self, fault: Fault) -> None:
        """Stop the node for so long that the other nodes mark it as down."""
        pid = self._line.sandbox.nodes[fault.node - 1].pid
        self._struck(fault)
        self._line.signal(pid, signal.SIGSTOP)
        time.sleep(fault.length_s)
        self._line.signal(pid, signal.SIGCONT)

    def _truncate(self, fault: Fault) -> int:
        """Truncate until all nodes have done it. If a node was away, the others truncate again. Return the rows that
        were there."""
        table = TRUNCATED[int(fault.choice * len(TRUNCATED))]
        self._struck(fault, table)
        rows: list[int] = []

        def is_done() -> bool:
            try:
                with session_of(self._line) as session:
                    rows.append(
                        session.execute(f"SELECT COUNT(*) FROM {KEYSPACE}.{table}", timeout=_TRUNCATE_S).one()[0]
                    )
                    session.execute(f"TRUNCATE {KEYSPACE}.{table}", timeout=_TRUNCATE_S)
            except Failures:
                return False
            return True

        wait_for(is_done, f"TRUNCATE of {table}", _START_S)
        return max(rows)

    def _end_connector(self, fault: Fault) -> None:
        """Kill the connector for half of the faults, so that the topic or its subscription is removed while the
        connector is down."""
        if fault.choice * 100 % 1 < 0.5:
            for host in self._line.hosts():
                with suppress(psutil.NoSuchProcess):
                    host.kill()

    def _two_agents(self, fault: Fault) -> None:
        """Start a second agent of the node. It must not read, in the same working directory or in its own."""
        agent, lock = self._agent(fault)
        node = self._line.sandbox.nodes[fault.node - 1]
        with lock:
            self._line.wait_for_agent(agent)  # otherwise the second agent could take the first one's place
            self._second_agents += 1
            directory = self._line.folder / f"second-agent-{self._second_agents}"
            shares = fault.choice < 0.5
            options = {"cdcWorkingDir": str(agent.working_dir)} if shares else {}
            second = self._line.agent_of(node, directory, **options)
            self._struck(fault, "in the same working directory" if shares else "in a directory of its own")
            second.launch()
            try:
                wait_for(lambda: _waits(second), "the second agent of a node is kept out", _START_S)
                time.sleep(fault.length_s)
                if not second.running or (directory / "work").exists():
                    raise SandboxError(f"the second agent of a node did not wait:\n{second.log_tail()}")
            finally:
                second.kill()
            if not agent.running:
                raise SandboxError(f"an agent ended beside a second one:\n{agent.log_tail()}")


def _drawn(fault: Fault, processes: list[psutil.Process]) -> list[psutil.Process]:
    """The process of the instance that the fault strikes, as a list; empty if no process runs."""
    return [processes[int(fault.choice * len(processes))]] if processes else []


def _waits(agent: AgentProcess) -> bool:
    """Return whether the agent's log says that it waits for another agent. Raises SandboxError when it ended
    instead."""
    if not agent.running:
        raise SandboxError(f"the second agent of a node ended instead of waiting:\n{agent.log_tail()}")
    return "another agent reads" in agent.log_tail()
