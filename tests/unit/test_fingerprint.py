"""What tells whether a file would be read as it was before."""

import sherlock.rag.reading.fingerprint as module
from sherlock.rag.reading.fingerprint import fingerprint


def test_it_is_the_same_until_something_changes(tmp_path, monkeypatch):
    assert fingerprint("eng", "20") == fingerprint("eng", "20") != fingerprint("deu", "20")

    (tmp_path / "parser.py").write_text("a = 1")
    monkeypatch.setattr(module, "_OURS", tmp_path)
    told = [fingerprint.__wrapped__()]
    (tmp_path / "parser.py").write_text("a = 2")
    told.append(fingerprint.__wrapped__())
    (tmp_path / "parser.py").rename(tmp_path / "other.py")
    told.append(fingerprint.__wrapped__())
    monkeypatch.setattr(module, "version", lambda name: "9.9")
    told.append(fingerprint.__wrapped__())
    assert len({*told}) == 4
