"""How fast a layout will be, what the time goes into, and what the hardware would allow."""

from glmspark.plan.speed.constants import Constants, load_constants
from glmspark.plan.speed.links import Link
from glmspark.plan.speed.predict import Prediction, Range, predict
from glmspark.plan.speed.run import Run

__all__ = ["Constants", "Link", "Prediction", "Range", "Run", "load_constants", "predict"]
