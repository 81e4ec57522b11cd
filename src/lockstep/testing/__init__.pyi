"""The public names of lockstep.testing: the only list of them. See ``lockstep._base.exports``."""

from lockstep.testing._errors import DifferenceError as DifferenceError
from lockstep.testing._errors import TimeLimitError as TimeLimitError
from lockstep.testing._same import same_at as same_at
