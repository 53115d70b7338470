"""What the topics are made with."""

from darkroom.contracts.topics import DAY_MS, Topics


def test_a_dead_letter_topic_takes_more_and_keeps_it_longer_than_its_main_topic() -> None:
    main, dead, events = Topics().specs(retention_days=3)
    assert int(dead.config["max.message.bytes"]) > int(main.config["max.message.bytes"])
    assert int(dead.config["retention.ms"]) > int(main.config["retention.ms"]) == 3 * DAY_MS
    assert dead.partitions == main.partitions
    # By key a compacted topic would keep an asset's last event alone.
    assert {topic.config["cleanup.policy"] for topic in (main, dead, events)} == {"delete"}
