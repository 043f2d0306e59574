"""Known vulnerabilities of the locked packages: ``python -m tools.supply.audit requirements.lock``.

Exit code 1 for a vulnerability. A service that cannot be reached, or that does not know a package, is said and is
no failure, so that a machine without the internet can run ``make check``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

SERVICES = ("pypi", "osv")
"""Services that pip-audit can ask, in this order, until one has answered."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a service said of the packages."""

    audited: tuple[str, ...]
    skipped: tuple[str, ...]
    """Packages that the service does not know."""
    vulnerable: tuple[str, ...]
    """A sentence each."""


def understood(report: dict[str, Any]) -> Audit:
    """A report of pip-audit."""
    packages = report["dependencies"]
    return Audit(
        audited=tuple(item["name"] for item in packages if "skip_reason" not in item),
        skipped=tuple(item["name"] for item in packages if "skip_reason" in item),
        vulnerable=tuple(
            f"{item['name']} {item['version']}: {entry['id']}, mended in "
            f"{', '.join(entry['fix_versions']) or 'no version'}"
            for item in packages
            for entry in item.get("vulns", ())
        ),
    )


def ask(service: str, lock: str) -> Audit | None:
    """What a service says; None when it cannot be reached."""
    words = [
        "--requirement",
        lock,
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", service, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    try:
        return understood(json.loads(done.stdout))
    except (json.JSONDecodeError, KeyError):
        return None


def told(audit: Audit | None) -> tuple[int, str]:
    """Exit code, and what to say."""
    if audit is None or not audit.audited:
        return 0, "not audited: no vulnerability service reachable that knows the packages"
    if audit.vulnerable:
        return 1, "\n".join(audit.vulnerable)
    unknown = f"; not audited: {', '.join(audit.skipped)}" if audit.skipped else ""
    return 0, f"audited {len(audit.audited)} packages, no known vulnerability{unknown}"


def main(lock: str) -> int:
    """Ask until a service has answered."""
    answers = (ask(service, lock) for service in SERVICES)
    code, text = told(next((answer for answer in answers if answer is not None and answer.audited), None))
    sys.stdout.write(f"{lock}: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
