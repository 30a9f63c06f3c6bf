"""The events file of a job: whole lines only, and nothing from before the reader."""

from pathlib import Path

from stages.training.worker_group.events import EventReader, EventWriter


def test_a_reader_gets_each_new_event_once_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "job" / "events.jsonl"
    writer = EventWriter(path)
    writer.send("old")
    with EventReader(path) as reader:
        assert reader.new() == []
        writer.send("step", step=1)
        writer.send("step", step=2)
        assert [event["step"] for event in reader.new()] == [1, 2]
        with path.open("a") as half:
            half.write('{"event": "st')
            half.flush()
            assert reader.new() == []
            half.write('ep", "step": 3}\n{"event"')
        assert [event["step"] for event in reader.new()] == [3]
        assert reader.new() == []
