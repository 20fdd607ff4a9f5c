"""The synthetic operating room: procedures with known answers, rendered and encoded here, never downloaded.

`procedure` writes the script, `motion` what every frame shows, `anatomy` and `instruments` draw a patient and
the tools with `shading`, `render` makes frames of them, `recording` writes videos, labels and a contact
sheet."""

from surgicalmamba.data.synthetic.procedure import PHASE_NAMES
from surgicalmamba.data.synthetic.recording import Operation, operation, write_contact_sheet, write_dataset

__all__ = ["PHASE_NAMES", "Operation", "operation", "write_contact_sheet", "write_dataset"]
