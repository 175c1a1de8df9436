"""The numbers that a run's log ends with, such as its accuracy, for the run's state."""

from __future__ import annotations

from hvdcloud.runs.log_lines import Lines, Speaker, counted, numbers_in, rank_and_text


def newest_numbers(log: bytes, *, elastic: bool) -> dict[str, float]:
    """The newest of each number (`loss`, `accuracy`, `images/s`) in the end of a log; empty where it names none."""
    speaker, lines, found = Speaker(elastic=elastic), Lines(), dict[str, float]()
    for line in [*lines.feed(log), lines.rest()]:
        tagged = rank_and_text(line)
        if tagged is None or not speaker.may(tagged[0]):
            continue
        text = tagged[1].decode(errors="replace")
        at, numbers = counted(text), numbers_in(text)
        if (at or numbers) and speaker.says(tagged[0], at):
            found |= numbers
    return found
