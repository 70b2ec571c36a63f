/* code = [operation, arguments …]*:  calls of the other kernels, one after another
 *
 * The step of a stack of layers is a few kernels a layer; the way from one to the next through
 * Python takes longer than they do. Here they are called from a list, arguments as int64_t: numbers
 * as they are, pointers and doubles by their bits.
 */
#include <cstring>
#include <type_traits>
#include <utility>

#include "common.h"

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

    template <typename... Arguments>
    int call(int (*function)(Arguments...)) {
        constexpr int64_t count = sizeof...(Arguments);
        if (end - at < count) return THREEFOLD_BAD_SIZE;
        const int64_t *words = at;
        at += count;
        return apply(function, words, std::index_sequence_for<Arguments...>{});
    }
};

template <typename real>
int add(real *y, const real *a, const real *b, int64_t count, int64_t threads) {
    if (count < 0) return THREEFOLD_BAD_SIZE;
    split(vectors_of<real>(count), useful_threads(threads, count), [&](int64_t first, int64_t last) {
        for_each_vector<real>(first, last, count, [&](int64_t i, auto lanes) {
            lanes.store(y + i, lanes.load(a + i) + lanes.load(b + i));
        });
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

/* program.py has the same order. */
#define DEFINE(real, suffix)                                                                       \
    int threefold_add_##suffix(real *y, const real *a, const real *b, int64_t count,               \
                               int64_t threads) {                                                  \
        return threefold::add<real>(y, a, b, count, threads);                                      \
    }                                                                                              \
    int threefold_program_##suffix(const int64_t *code, int64_t words) {                           \
        threefold::Reader reader{code, code + words};                                              \
        while (reader.at < reader.end) {                                                           \
            int status = THREEFOLD_BAD_SIZE;                                                       \
            switch (*reader.at++) {                                                                \
                case 0: status = reader.call(threefold_add_##suffix); break;                       \
                case 1: status = reader.call(threefold_rms_norm_forward_##suffix); break;          \
                case 2: status = reader.call(threefold_mamba_step_##suffix); break;                \
            }                                                                                      \
            if (status) return status;                                                             \
        }                                                                                          \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
