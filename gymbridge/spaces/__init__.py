"""Spaces and what they become: :mod:`~gymbridge.spaces.naming` without torch, ``conversion`` with it."""

from __future__ import annotations
