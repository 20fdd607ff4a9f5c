"""Phase colours that stay apart for colour-blind readers, and in grey print with the help of hatching."""

# Okabe and Ito's palette without black, ordered so that neighbouring phases differ in lightness as well as in
# hue.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_HATCHES = ("", "////", "....", "xxxx")


def colour(phase: int) -> str:
    """Fill of a phase. Phases a palette apart share it and differ in `hatch`."""
    return _PALETTE[phase % len(_PALETTE)]


def hatch(phase: int) -> str:
    """Hatching of a phase: none for the first seven, then three patterns in turn."""
    return _HATCHES[phase // len(_PALETTE) % len(_HATCHES)]
