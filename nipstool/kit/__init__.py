"""The ground floor: what several methods need. Knows no method, prints nothing."""
