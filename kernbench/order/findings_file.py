"""Findings in a file: JSON, or SARIF 2.1.0 (OASIS), which code hosts show beside the lines."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kernbench.order.findings import FoundReport, Races
from kernbench.output_files import require_place, write_file
from kernbench.version import __version__

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def check_findings_path(path: str) -> None:
    """Raises :class:`ConfigError` for a file that cannot be written, or is neither ``.json`` nor ``.sarif``."""
    require_place(path, ".sarif", ".json", option="--races-output")


def write_findings(path: str, races: Races) -> None:
    """Write what was found, and what is excused, as the name of the file says."""
    found = _sarif(races) if path.endswith(".sarif") else _plain(races)
    write_file(path, json.dumps(found, indent=1) + "\n")


def _plain(races: Races) -> dict[str, object]:
    return {
        "found": [{**each.record, "count": races.count(each)} for each in races.found],
        "excused": [{**each.record, "excuse": each.excuse} for each in races.excused],
    }


def _sarif(races: Races) -> dict[str, object]:
    every = [*races.found, *races.excused]
    rules = sorted({each.kind for each in every})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kernbench",
                        "semanticVersion": __version__,
                        "rules": [{"id": _rule(kind), "shortDescription": {"text": kind}} for kind in rules],
                    }
                },
                "originalUriBaseIds": {"ROOT": {"uri": Path.cwd().as_uri() + "/"}},
                "results": [_result(each, races) for each in every],
            }
        ],
    }


def _rule(kind: str) -> str:
    return kind.replace(" ", "-")


def _result(report: FoundReport, races: Races) -> dict[str, Any]:
    accesses = report.record["accesses"]
    result: dict[str, Any] = {
        "ruleId": _rule(report.kind),
        "level": "error",
        "message": {"text": str(report)},
        "locations": [_location(report.where.file, report.where.line)],
        "relatedLocations": [
            {
                **_location(each["file"], each["line"]), "id": number,
                "message": {"text": f"rank {each['rank']}, {each['strand']}: {each['operation']} {each['does']} it"},
            }
            for number, each in enumerate(accesses)
        ],
        "occurrenceCount": races.count(report),
        "partialFingerprints": {"kernbench/v1": _fingerprint(report, accesses)},
    }  # fmt: skip
    if report.excuse is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": report.excuse}]
    return result


def _location(file: str, line: int) -> dict[str, object]:
    name = os.path.relpath(file) if os.path.isabs(file) else file
    inside = not name.startswith(os.pardir)
    where = {"uri": Path(name).as_posix(), "uriBaseId": "ROOT"} if inside else {"uri": Path(file).as_uri()}
    return {"physicalLocation": {"artifactLocation": where, "region": {"startLine": max(line, 1)}}}


def _fingerprint(report: FoundReport, accesses: Any) -> str:
    """The same as long as the same operations of the same files meet, wherever their lines move to."""
    parts = [
        report.kind,
        *(f"{os.path.basename(each['file'])}:{each['operation']}:{each['does']}" for each in accesses),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
