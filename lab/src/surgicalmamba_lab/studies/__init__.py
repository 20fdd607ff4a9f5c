"""Studies: lists of training runs, resumed after any interruption, and the tables and figures made from
them."""
