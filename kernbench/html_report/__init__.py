"""The report in the browser: a run as one page that opens offline."""

from kernbench.html_report.page import check_report_path, page_of, read_page, write_report
from kernbench.html_report.source import ReportSource, source_of_run, source_of_trace

__all__ = [
    "ReportSource",
    "check_report_path",
    "page_of",
    "read_page",
    "source_of_run",
    "source_of_trace",
    "write_report",
]
