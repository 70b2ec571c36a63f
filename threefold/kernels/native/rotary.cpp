/* y_i = x_i cos a − x_{i+h} sin a,   y_{i+h} = x_{i+h} cos a + x_i sin a,   i < h
 *
 * Rotary positions of queries or keys in one pass over memory. The gradient is the same turned back.
 */
#include "common.h"

namespace threefold {
namespace {

template <typename real>
struct Turn {
    real *y;
    const real *x, *cos, *sin;
    int64_t size, half;
    bool back;

    /* One head of one element; c and s are the cosines and sines of its position. */
    void head(int64_t at, const real *c, const real *s) const {
        const real *from = x + at;
        real *to = y + at;
        for_each_vector<real>(0, vectors_of<real>(half), half, [&](int64_t i, auto lanes) {
            const Vector<real> first = lanes.load(from + i), second = lanes.load(from + half + i);
            const Vector<real> across = back ? -lanes.load(s + i) : lanes.load(s + i);
            const Vector<real> along = lanes.load(c + i);
            lanes.store(to + i, first * along - second * across);
            lanes.store(to + half + i, second * along + first * across);
        });
        for (int64_t i = 2 * half; i < size; ++i) to[i] = from[i];
    }
};

template <typename real>
int rotary(const Turn<real> &turn, const int64_t *starts, int64_t batch, int64_t length,
           int64_t heads, int64_t entries, int64_t threads) {
    const int64_t size = turn.size, half = turn.half;
    if (batch < 0 || length < 0 || heads < 0 || half < 0 || size < 2 * half)
        return THREEFOLD_BAD_SIZE;
    for (int64_t row = 0; row < batch; ++row)
        if (starts[row] < 0 || starts[row] + length > entries) return THREEFOLD_BAD_INDEX;
    const int64_t useful = useful_threads(threads, batch * length * heads * size);
    split_rows(batch, length, useful, [&](int64_t row, int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
            const int64_t place = (starts[row] + t) * half;
            for (int64_t head = 0; head < heads; ++head)
                turn.head(((row * length + t) * heads + head) * size, turn.cos + place,
                          turn.sin + place);
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                      \
    int threefold_rotary_##suffix(real *y, const real *x, const real *cos, const real *sin,       \
                                  const int64_t *starts, int64_t batch, int64_t length,           \
                                  int64_t heads, int64_t size, int64_t half, int64_t entries,     \
                                  int64_t back, int64_t threads) {                                \
        return threefold::rotary<real>({y, x, cos, sin, size, half, back != 0}, starts, batch,    \
                                       length, heads, entries, threads);                          \
    }
THREEFOLD_FOR_BOTH(DEFINE)
