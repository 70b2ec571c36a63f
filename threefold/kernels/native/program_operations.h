/* Operations that only programs call: they have no signature in library.py. */
#pragma once

#include "threefold.h"

extern "C" {

/* As `gather`, from a table of bfloat16, or with a scale for each row, of 8-bit codes. */
#define THREEFOLD_DECLARE(real, suffix)                                                            \
    int threefold_gather_narrow_##suffix(real *y, const void *table, const real *scale,            \
                                         const double *index, int64_t rows, int64_t width,         \
                                         int64_t entries, int64_t threads);
THREEFOLD_FOR_BOTH(THREEFOLD_DECLARE)
#undef THREEFOLD_DECLARE

}  // extern "C"
