"""The tests, whose figures are quicker to print: three quarters of the time of a PDF go into tables of its fonts (ligatures, kerning) that no
reader of a PDF looks at. They are left out in every process that imports a module of the tests."""

from fontTools.subset import Options

Options._drop_tables_default = [*Options._drop_tables_default, "GSUB", "GPOS", "GDEF", "MATH"]
