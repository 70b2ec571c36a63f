/* x_{t+1} ~ softmax(model(x_t, state_t)):  a program in a loop, with what lies between two steps
 *
 * A request is a list of words. What a program was recorded from is compared first: words of memory that
 * must be as they were, and checksums of what cached values were computed from. Then the program runs
 * `steps` times: `first` reads the state that was given and writes the first of two states, `odd` reads
 * the first and writes the second, `even` the reverse. Counters are advanced after each step. Either
 * nothing else happens, or inputs and outputs are copied, or a token is chosen for every row.
 */
#include <cstring>

#include "choosing.h"
#include "common.h"

namespace threefold {
namespace {

/* The words of a request, in the order of REQUEST in kernels/replay/program.py. */
struct Request {
    const uint64_t *guards; /* [guard_count, 2]: an address, and the word that must be there */
    int64_t guard_count;
    const uint64_t *regions; /* [region_count, 3]: an address, bytes, their checksum */
    int64_t region_count;
    const int64_t *first, *odd, *even;
    int64_t words;
    int64_t *counters;
    int64_t counter_count, steps;
    char *x, *y;          /* what the program reads and writes */
    const char *inputs;   /* [steps] of x, or null */
    char *outputs;        /* [steps] of y, or null */
    int64_t x_bytes, y_bytes;
    const Choosing *choosing; /* or null */
};
static_assert(sizeof(Request) == 18 * sizeof(int64_t), "a request is a list of words");

bool unchanged(const Request &r) {
    for (int64_t i = 0; i < r.guard_count; ++i) {
        uint64_t word;
        std::memcpy(&word, reinterpret_cast<const void *>(r.guards[2 * i]), sizeof word);
        if (word != r.guards[2 * i + 1]) return false;
    }
    for (int64_t i = 0; i < r.region_count; ++i) {
        const uint64_t *region = r.regions + 3 * i;
        const void *bytes = reinterpret_cast<const void *>(region[0]);
        if (threefold_checksum(bytes, int64_t(region[1])) != region[2]) return false;
    }
    return true;
}

int run(const Request &r, int64_t *done) {
    *done = 0;
    if (!unchanged(r)) return THREEFOLD_STALE;
    for (int64_t step = 0; step < r.steps; ++step) {
        if (r.inputs) std::memcpy(r.x, r.inputs + step * r.x_bytes, size_t(r.x_bytes));
        const int64_t *code = step == 0 ? r.first : step % 2 ? r.odd : r.even;
        if (const int status = threefold_program(code, r.words)) return status;
        for (int64_t i = 0; i < r.counter_count; ++i) ++r.counters[i];
        if (r.outputs) std::memcpy(r.outputs + step * r.y_bytes, r.y, size_t(r.y_bytes));
        *done = step + 1;
        if (!r.choosing) continue;
        bool ended = false;
        if (const int status = choose_tokens(*r.choosing, step, &ended)) return status;
        if (ended) break;
    }
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

int threefold_run_steps(const int64_t *request, int64_t *done) {
    threefold::Request words;
    std::memcpy(&words, request, sizeof words);
    return threefold::run(words, done);
}

uint64_t threefold_checksum(const void *bytes, int64_t count) {
    constexpr int lanes = 8;
    uint64_t sums[lanes] = {};
    const char *at = static_cast<const char *>(bytes);
    const auto add = [&](const char *from, int lane) {
        uint64_t word;
        std::memcpy(&word, from, sizeof word);
        sums[lane] = (sums[lane] ^ word) * 0x9E3779B97F4A7C15u;
        sums[lane] ^= sums[lane] >> 32;
    };
    int64_t left = count;
    for (; left >= 8 * lanes; left -= 8 * lanes, at += 8 * lanes)
        for (int lane = 0; lane < lanes; ++lane) add(at + 8 * lane, lane);
    for (; left >= 8; left -= 8, at += 8) add(at, 0);
    char rest[8] = {};
    std::memcpy(rest, at, size_t(left));
    add(rest, 1);
    uint64_t whole = uint64_t(count);
    for (int lane = 0; lane < lanes; ++lane) whole = (whole ^ sums[lane]) * 0xBF58476D1CE4E5B9u;
    return whole ^ whole >> 31;
}
