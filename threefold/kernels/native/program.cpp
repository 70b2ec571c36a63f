/* code = [operation, arguments …]*:  calls of the other kernels, one after another
 *
 * The step of a stack of layers is a few kernels per layer, and the Python between them takes longer
 * than they do. Here they are called from a list. Arguments are int64_t: integers by value, pointers
 * and doubles by their bits.
 */
#include <cstring>
#include <type_traits>
#include <utility>

#include "common.h"
#include "program_operations.h"

namespace threefold {
namespace {

template <typename To>
inline To argument(int64_t word) {
    static_assert(sizeof(To) == sizeof word, "arguments are words");
    To value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}

template <typename... Arguments, std::size_t... Places>
inline int apply(int (*function)(Arguments...), const int64_t *words,
                 std::index_sequence<Places...>) {
    return function(argument<Arguments>(words[Places])...);
}

/* A position in the code. */
struct Reader {
    const int64_t *at, *end;

    int next();

    template <typename... Arguments>
    int call(int (*function)(Arguments...)) {
        constexpr int64_t count = sizeof...(Arguments);
        if (end - at < count) return THREEFOLD_BAD_SIZE;
        const int64_t *words = at;
        at += count;
        return apply(function, words, std::index_sequence_for<Arguments...>{});
    }
};

/* One line for each operation, float first, in the order of OPERATIONS in kernels/replay/listing.py. */
#define CALL(number, name)                                                                         \
    case 2 * number: return call(threefold_##name##_f32);                                          \
    case 2 * number + 1: return call(threefold_##name##_f64);

inline int Reader::next() {
    switch (*at++) {
        CALL(0, linear)
        CALL(1, linear_narrow)
        CALL(2, rms_norm_forward)
        CALL(3, short_convolution_forward)
        CALL(4, token_shift_forward)
        CALL(5, selective_scan_forward)
        CALL(6, decay_recurrence_forward)
        CALL(7, delta_recurrence_forward)
        CALL(8, diagonal_recurrence_forward)
        CALL(9, pointwise)
        CALL(10, reduce)
        CALL(11, product)
        CALL(12, convert)
        CALL(13, reservoir_forward)
        CALL(14, linear_codes)
        CALL(15, gather)
        CALL(16, from_integers)
        CALL(17, to_integers)
        CALL(18, history_step)
        CALL(19, online_convolution)
        CALL(20, cell_recurrence_forward)
        CALL(21, legs_recurrence_forward)
        CALL(22, gather_narrow)
        CALL(23, swiglu_forward)
        default: return THREEFOLD_BAD_SIZE;
    }
}

}  // namespace
}  // namespace threefold

int threefold_program(const int64_t *code, int64_t words) {
    threefold::Reader reader{code, code + words};
    while (reader.at < reader.end)
        if (const int status = reader.next()) return status;
    return THREEFOLD_OK;
}
