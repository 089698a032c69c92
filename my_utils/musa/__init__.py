"""Moves CUDA code to MUSA, or to HIP: C++ and CUDA sources, Python scripts, extensions.

`simple_porting` rewrites a folder of CUDA sources, `converter` (the command `musa-converter`)
Python scripts; `musa_extension` builds extensions with mcc, and `cmake_lists_generator` writes a
CMakeLists.txt for a library or a plugin. None of it needs a device, or anything of MUSA, at import.
"""
