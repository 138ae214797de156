"""The old name of ``triptych.report.attention_maps``, until version 0.4.

Tested by tests/report/test_attention_maps.py.
"""

from triptych.report.attention_maps import AttentionMap, AttentionMaps, attention_maps, record_attention, rollout

__all__ = ["AttentionMap", "AttentionMaps", "attention_maps", "record_attention", "rollout"]
