# SPDX-License-Identifier: Apache-2.0
"""The version of this package. It must be that of include/poise.h (a test compares), since structs cross by it."""

__version__ = "0.1.0"
