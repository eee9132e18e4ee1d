"""Capturing rounds as they happen."""

from leakgauge.capture.recorder import Recorder as Recorder
from leakgauge.capture.recorder import RoundExamples as RoundExamples
from leakgauge.capture.recorder import named as named
from leakgauge.capture.recorder import seen as seen
from leakgauge.capture.recorder import unbroken as unbroken
from leakgauge.capture.recorder import watching as watching
