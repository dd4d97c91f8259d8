"""Migration of metrics.json from schema 1, which had no digests, no status, and sentences as notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plmia.errors import Note
from plmia.results.wording import UNVERIFIED, Status, headline


def upgraded(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return contents of schema 1 as schema 2 has them; the missing digests are a doubt about the verdict."""
    try:
        found = value["verdict"]
        status: Status = "leak" if found["leak_shown"] else "inconclusive"
        unnamed = found.get("unnamed")
        added = {
            "status": status,
            "grade": None,
            "headline": headline(status, None),
            "beats_chance": found["leak_shown"],
            "doubts": [UNVERIFIED.code],
            "members": value["attacks"][found["attack"]]["per_target"][0]["n_members"],
            "auc_attack": found["attack"],
            "unnamed": unnamed | {"reason": "the population is too small", "remedy": ""} if unnamed else None,
        }
        earlier = [Note("earlier-version", "info", note) for note in value["notes"] if isinstance(note, str)]
        return {
            **value,
            "schema": 2,
            "verdict": found | added,
            "notes": [note.to_json() for note in (UNVERIFIED, *earlier)],
        }
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"metrics.json does not have the parts of schema 1 ({error})") from error
