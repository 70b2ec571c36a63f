/* |x| < 2^−126 → 0 (2^−1022 in float64), while one of these exists in the thread
 *
 * A memory that decays passes through denormal numbers, with which processors are a hundred times
 * slower. They are negligible, so they are set to 0.
 */
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace threefold {

class FlushDenormals {
#if defined(__x86_64__) || defined(_M_X64)
    const unsigned before = _mm_getcsr();

public:
    /* Bit 15: results to zero. Bit 6: inputs as zero. */
    FlushDenormals() { _mm_setcsr(before | 0x8040); }
    ~FlushDenormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;

public:
    FlushDenormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" : : "r"(before | (uint64_t(1) << 24)));
    }
    ~FlushDenormals() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#else
public:
    FlushDenormals() {}
    ~FlushDenormals() {}
#endif
    FlushDenormals(const FlushDenormals &) = delete;
    FlushDenormals &operator=(const FlushDenormals &) = delete;
};

}  // namespace threefold
