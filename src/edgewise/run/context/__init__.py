"""What happens to a conversation that does not fit into the context.

Pure: it renders, tokenises and summarises through what its caller passes in.
"""

from edgewise.run.context.counts import TokenCounts
from edgewise.run.context.fitting import fit
from edgewise.run.context.summaries import Summaries, summary_request
from edgewise.run.context.task import Fitted

__all__ = ["Fitted", "Summaries", "TokenCounts", "fit", "summary_request"]
