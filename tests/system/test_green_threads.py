"""Where gevent has replaced threads, workers are refused: nobody would see their deaths."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import shmloader


@pytest.mark.parametrize("replaced", [("threading", "select"), ("threading",), ("select",), ()])
@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_what_gevent_has_replaced(monkeypatch: Any, replaced: tuple[str, ...], options: dict[str, Any]) -> None:
    monkey = types.SimpleNamespace(is_module_patched=lambda name: name in replaced)
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    loader = shmloader.DataLoader(list(range(3)), num_workers=1, **options)
    if not replaced:
        assert [int(batch) for batch in loader] == [0, 1, 2]
    else:
        with pytest.raises(RuntimeError, match=rf"gevent has replaced {' and '.join(replaced)} in this process"):
            iter(loader)
    loader.close()
    assert [int(batch) for batch in shmloader.DataLoader([1])] == [1]
