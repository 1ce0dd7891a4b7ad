"""detect-navtext: find the text that tells a robot where it is (NavOCR)."""

from nipstool.detect_navtext.lines import KINDS, Line

__all__ = ["KINDS", "Line"]
