"""TopicChecks: the place from which events are lost with a deleted topic, by its subscription's consumed positions."""

from __future__ import annotations

from pathlib import Path

import pytest

from change_agent.errors import TopicLostError
from change_agent.positions.inflight import Place
from change_agent.publishing.topic_checks import TopicChecks, TopicState

_TOPIC = "persistent://public/default/cdc-events-ks.t"


def _state(end: int, consumed: int, *, mark: str | None = "m", drained: bool = False) -> TopicState:
    return TopicState(partitions=1, mark=mark, ends=((1, end),), consumed=((1, consumed),), is_drained=drained)


def _place(position: int) -> Place:
    return Place(7, position, position * 10)


def test_what_nobody_has_consumed_is_lost_too(tmp_path: Path) -> None:
    """The connector was away for three checks. The loss begins at the last check whose end it had consumed."""
    looks = TopicChecks(tmp_path)
    looks.note(_TOPIC, _state(10, 10), _place(100))
    for number, end in enumerate((20, 30, 40)):
        looks.note(_TOPIC, _state(end, 10), _place(200 + number))
    assert looks.renew(_TOPIC, _state(-1, -1, mark="n")) == _place(100)


@pytest.mark.parametrize(
    ("consumed", "drained", "since"), [(19, False, 100), (20, False, 200), (30, False, 300), (0, True, 400)]
)
def test_what_was_consumed_is_not_lost(tmp_path: Path, consumed: int, drained: bool, since: int) -> None:
    """The subscription's position shows it, or the subscription has no backlog."""
    looks = TopicChecks(tmp_path)
    looks.note(_TOPIC, _state(10, 10), _place(100))
    looks.note(_TOPIC, _state(20, 10), _place(200))
    looks.note(_TOPIC, _state(30, 10), _place(300))
    looks.note(_TOPIC, _state(40, consumed, drained=drained), _place(400))
    assert looks.renew(_TOPIC, _state(-1, -1, mark="n")) == _place(since)


def test_another_subscription_is_a_loss_also_for_the_next_process(tmp_path: Path) -> None:
    """The loss is found until it is reported. Then the new subscription is the known one."""
    first = TopicChecks(tmp_path)
    first.note(_TOPIC, _state(10, 10), _place(100))
    first.save()
    again = _state(5, 5, mark="n")
    with pytest.raises(
        TopicLostError,
        match="has another subscription than before: it was removed, or the topic was deleted, and made again",
    ):
        first.compare(_TOPIC, again)
    assert first.renew(_TOPIC, again) == _place(100)
    first.compare(_TOPIC, again)
    first.save()
    with pytest.raises(TopicLostError):
        TopicChecks(tmp_path).compare(_TOPIC, again)
    first.note_reported(_TOPIC)
    TopicChecks(tmp_path).compare(_TOPIC, again)


def test_a_topic_that_was_missing_at_a_look_is_lost_whatever_is_found_next(tmp_path: Path) -> None:
    """The topic has no mark, and was created again by another client."""
    looks = TopicChecks(tmp_path)
    looks.note(_TOPIC, _state(10, 10, mark=None), _place(100))
    looks.note_lost(_TOPIC, "does not exist")
    looks.save()
    for each in (looks, TopicChecks(tmp_path)):
        with pytest.raises(TopicLostError, match="does not exist"):
            each.compare(_TOPIC, _state(10, 10, mark=None))


def test_a_mark_that_comes_later_is_taken(tmp_path: Path) -> None:
    """The connector created the subscription, and an agent marked it later."""
    looks = TopicChecks(tmp_path)
    looks.note(_TOPIC, _state(10, 10, mark=None), _place(100))
    looks.note(_TOPIC, _state(10, 10, mark="m"), _place(200))
    with pytest.raises(TopicLostError):
        looks.compare(_TOPIC, _state(10, 10, mark=None))


def test_looks_that_nobody_catches_up_with_are_bounded_and_the_first_one_stays(tmp_path: Path) -> None:
    """A connector may be away for weeks."""
    looks = TopicChecks(tmp_path)
    looks.note(_TOPIC, _state(10, 10), _place(100))
    for number in range(10_000):
        looks.note(_TOPIC, _state(20 + number, 10), _place(200 + number))
    looks.save()
    assert looks.path.stat().st_size < 50_000
    assert TopicChecks(tmp_path).renew(_TOPIC, _state(-1, -1, mark="n")) == _place(100)


def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    """The next check stores the topics again."""
    for content in (
        "",
        "{",
        "[]",
        '{"t": 1}',
        '{"t": {"mark": null, "lost": null, "looks": [{"ends": 1, "place": null}]}}',
    ):
        (tmp_path / "topic-looks.json").write_text(content)
        assert not TopicChecks(tmp_path).knows("t")


def test_a_subscription_without_a_mark_wants_one_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, the agent that created the topic may be about to set its mark."""
    now = 1_000.0
    looks = TopicChecks(tmp_path, clock=lambda: now)
    assert not looks.wants_mark(_TOPIC)
    looks.note(_TOPIC, _state(10, 10, mark=None), _place(100))
    now += 59
    assert not looks.wants_mark(_TOPIC)
    now += 1
    assert looks.wants_mark(_TOPIC)
    looks.note(_TOPIC, _state(20, 20), _place(200))
    assert not looks.wants_mark(_TOPIC)


def test_another_name_of_the_subscription_is_a_new_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the former subscription had a backlog, a loss still begins at its place."""
    caplog.set_level("INFO")
    former = TopicChecks(tmp_path, "old")
    former.note(_TOPIC, _state(10, 5), _place(100))
    former.save()
    looks = TopicChecks(tmp_path, "new")
    assert looks.former_subscription(_TOPIC) == "old"
    looks.compare(_TOPIC, _state(10, 5))
    looks.note(_TOPIC, _state(10, -1, mark=None), None)
    looks.save()
    assert [each.getMessage() for each in caplog.records] == [
        f"{_TOPIC} has the subscription 'new' now, which begins at the oldest message that the topic has; if nothing reads"
        " 'old', delete it"
    ]
    for each in (looks, TopicChecks(tmp_path, "new")):
        assert each.former_subscription(_TOPIC) is None
        each.compare(_TOPIC, _state(10, -1, mark=None))
    assert looks.renew(_TOPIC, _state(-1, -1, mark="n")) == _place(100)


def test_a_file_of_an_earlier_version_names_no_subscription(tmp_path: Path) -> None:
    """The subscription of such an entry is the configured one, so a loss is still found."""
    (tmp_path / "topic-looks.json").write_text(f'{{"{_TOPIC}": {{"mark": "m", "lost": null, "looks": []}}}}')
    looks = TopicChecks(tmp_path, "sub")
    assert looks.former_subscription(_TOPIC) is None
    with pytest.raises(TopicLostError):
        looks.compare(_TOPIC, _state(10, 10, mark="n"))
