"""The public names of lockstep: the only list of them. See ``lockstep._base.exports``."""

from lockstep._base.config import RunConfig as RunConfig
from lockstep._base.errors import CheckpointError as CheckpointError
from lockstep._base.errors import ConfigError as ConfigError
from lockstep._base.errors import DataError as DataError
from lockstep._base.errors import LaunchError as LaunchError
from lockstep._base.errors import LockstepError as LockstepError
from lockstep._base.errors import LossError as LossError
from lockstep._base.errors import MismatchError as MismatchError
from lockstep._base.errors import ModelError as ModelError
from lockstep._base.errors import PeerError as PeerError
from lockstep._base.errors import UsageError as UsageError
from lockstep._data.batch import Batch as Batch
from lockstep._data.evaluation import Evaluation as Evaluation
from lockstep._data.evaluation_pass import EvaluationBatch as EvaluationBatch
from lockstep._data.loader import PreparedLoader as PreparedLoader
from lockstep._data.resumable import ResumableLoader as ResumableLoader
from lockstep._data.resumable import resumable as resumable
from lockstep._joining.instrument import Instrument as Instrument
from lockstep._joining.team import Team as Team
from lockstep._launch.function import launch as launch
from lockstep._listener import Listener as Listener
from lockstep._loop.hosted import HostedEpochs as HostedEpochs
from lockstep._state.checkpoint.weights import load_weights as load_weights
from lockstep._tools.arguments import join as join
from lockstep._world.comm.collectives import Collectives as Collectives
from lockstep._world.environment import World as World

__version__: str
