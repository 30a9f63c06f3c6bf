"""The report of a run for people."""

from flows.session import Session


def write_report(run: Session) -> str:
    """Writes the report and returns the key of its page."""
    return f"{run.layout.summary}/report.html"
