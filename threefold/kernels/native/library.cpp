/* What library.py asks before it calls a kernel: which variants run here, and which interface this is. */
#include "threefold.h"

#ifndef THREEFOLD_INTERFACE
#define THREEFOLD_INTERFACE "unknown"
#endif

extern "C" {

int threefold_runnable_variants(void) {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_cpu_init();
    int variants = THREEFOLD_BASELINE;
    /* Every processor with these features has the other features of its level too. */
    const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
    if (v3) variants |= THREEFOLD_V3;
    if (v4) variants |= THREEFOLD_V4;
    return variants;
#elif defined(__aarch64__)
    return THREEFOLD_NEON;
#else
    return THREEFOLD_BASELINE;
#endif
}

const char *threefold_interface(void) { return THREEFOLD_INTERFACE; }

int threefold_has_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

}  // extern "C"
