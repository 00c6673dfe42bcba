"""Generated Triton programs: what compiled kernels compute, held against the executor of Triton IR.

`python -m benchmarks.fuzz --help` lists the modes. Layout: `draws` (where choices come from), `values` (element types,
contents of buffers), `programs` (what a program is), `maker` and the `ops_*` modules (the generator), `compiling`
(source to IR and cubin, needs Triton), `gpu` (cubins on a GPU through the driver API), `farm` (many of both),
`stored` (results in a file), `comparing` (stored results against the executor).
"""
