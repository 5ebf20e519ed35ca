"""The study behind the manual: recorded runs, controls, tables and figures. It is not part of the installed package."""
