/* status = threefold_<operation>_<f32|f64>(outputs, workspace, inputs, sizes, threads)
 *
 * The C interface of the kernels: numbers in, numbers out. No allocation and no globals. Every
 * function returns a status. If it is not THREEFOLD_OK the outputs are unspecified: most functions
 * check their arguments before they write, but decay_recurrence finds a log-decay above 0 while it
 * runs.
 */
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#define THREEFOLD_API __declspec(dllexport)
#else
#define THREEFOLD_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* In the numbering of STATUS in library.py, which has the error messages. */
enum {
    THREEFOLD_OK = 0,
    THREEFOLD_BAD_SIZE = 1,   /* a size that is negative or beyond what the kernel supports */
    THREEFOLD_BAD_LENGTH = 2, /* a row's length outside 0 … L */
    THREEFOLD_BAD_DECAY = 3,  /* a log-decay above 0 */
    THREEFOLD_BAD_INDEX = 4,  /* a token or a position outside its table */
    THREEFOLD_STALE = 5,      /* something that a program was recorded from has changed */
    THREEFOLD_NOT_A_NUMBER = 6, /* a logit is NaN */
};

/* Bits of threefold_runnable_variants. */
enum {
    THREEFOLD_BASELINE = 1,
    THREEFOLD_V3 = 2,
    THREEFOLD_V4 = 4,
    THREEFOLD_NEON = 8,
};

/* Which variants this machine can run. Ask the baseline (or neon) library, which runs everywhere. */
THREEFOLD_API int threefold_runnable_variants(void);

/* SHA-256 of all files of native/ at build time; library.py compares it before it calls any function. */
THREEFOLD_API const char *threefold_interface(void);

/* 1 if the library was built with OpenMP. */
THREEFOLD_API int threefold_has_openmp(void);

/* Calls operations one after another. code [words] lists, for each call, the number of the operation
 * in program.cpp and then its arguments, 64 bits each. */
THREEFOLD_API int threefold_program(const int64_t *code, int64_t words);

/* Runs a program once or in a loop, if what it was recorded from is unchanged; program_loop.cpp describes
 * the words of a request. `done` is the number of steps that were completed. */
THREEFOLD_API int threefold_run_steps(const int64_t *request, int64_t *done);

/* A number that changes with any of the bytes. */
THREEFOLD_API uint64_t threefold_checksum(const void *bytes, int64_t count);

#define real float
#define THREEFOLD_NAME(name) threefold_##name##_f32
#include "operations.h"
#undef real
#undef THREEFOLD_NAME

#define real double
#define THREEFOLD_NAME(name) threefold_##name##_f64
#include "operations.h"
#undef real
#undef THREEFOLD_NAME

#ifdef __cplusplus
}
#endif

/* At the end of a kernel's file: DEFINE(float, f32) and DEFINE(double, f64). */
#define THREEFOLD_FOR_BOTH(DEFINE) DEFINE(float, f32) DEFINE(double, f64)
