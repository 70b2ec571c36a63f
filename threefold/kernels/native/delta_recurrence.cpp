/* delta     S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t⊗v_t        o_t = S_tᵀ q_t
 * rank one  S_t = (Diag(α_t) + a_t b_tᵀ) S_{t−1} + k_t⊗v_t
 *
 * The memory that erases, and its gradients: delta_forward.h and delta_backward.h process some of
 * the heads; this file divides the heads among threads.
 */
#include "delta_backward.h"
#include "delta_forward.h"

namespace threefold {
namespace delta {
namespace {

/* Numbers of workspace that one thread needs. */
template <typename real, typename Buffers>
int64_t buffer_size(const Inputs<real> &in) {
    Workspace<real> counted{nullptr};
    Buffers(counted, in, Tasks(in));
    return counted.used;
}

template <typename real, typename Pass>
int run(const Inputs<real> &in, real *workspace, const Pass &pass) {
    using Buffers = typename Pass::Buffers;
    const Tasks tasks(in);
    const int64_t each = buffer_size<real, Buffers>(in);
    tasks.run([&](int64_t thread, int64_t first, int64_t count) {
        Workspace<real> own{workspace + thread * each};
        pass.run(tasks, first, count, Buffers(own, in, tasks));
    });
    return THREEFOLD_OK;
}

template <typename real>
int forward(const Inputs<real> &in, const Outputs<real> &to, real *workspace) {
    if (const int status = in.status()) return status;
    const bool delta = in.strength.data, one = in.length == 1;
    if (delta && one) return run(in, workspace, Forward<real, 1, 1>{in, to});
    if (delta) return run(in, workspace, Forward<real, chunk, 1>{in, to});
    if (one) return run(in, workspace, Forward<real, 1, 2>{in, to});
    return run(in, workspace, Forward<real, chunk, 2>{in, to});
}

template <typename real>
int backward(const Inputs<real> &in, const Gradients<real> &to, const Given<real> &given,
             real *workspace) {
    if (const int status = in.status()) return status;
    if (in.strength.data) return run(in, workspace, Backward<real, 1>{in, to, given});
    return run(in, workspace, Backward<real, 2>{in, to, given});
}

/* Rank one needs more than delta, and a chunk more than one element. */
template <typename real>
int workspace(int64_t *numbers, const Inputs<real> &in, bool backward) {
    if (const int status = in.status()) return status;
    const int64_t each = backward ? buffer_size<real, BackwardBuffers<real, 2>>(in)
                                  : buffer_size<real, ForwardBuffers<real, chunk, 2>>(in);
    *numbers = Tasks(in).threads * each;
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace delta
}  // namespace threefold

#define INPUTS                                                                                    \
    {                                                                                             \
        {query, strides}, {key, strides + 3}, {value, strides + 6}, {log_decay, strides + 9},     \
            {strength, strides + 12}, {write, strides + 15}, {read, strides + 18}, state, lengths, \
            batch, length, heads, groups, keys, values, decays, parts, threads                    \
    }
#define SIZES                                                                                 \
    int64_t batch, int64_t length, int64_t heads, int64_t groups, int64_t keys, int64_t values, \
        int64_t decays, int64_t parts
#define DEFINE(real, suffix)                                                                       \
    int threefold_delta_recurrence_forward_##suffix(                                               \
        real *out, real *new_state, real *moved, real *checkpoints, real *workspace,               \
        const real *query, const real *key, const real *value, const real *log_decay,              \
        const real *strength, const real *write, const real *read, const real *state,              \
        const int64_t *lengths, const int64_t *strides, SIZES, int64_t threads) {                  \
        return threefold::delta::forward<real>(INPUTS, {out, new_state, moved, checkpoints},       \
                                               workspace);                                         \
    }                                                                                              \
    int threefold_delta_recurrence_backward_##suffix(                                              \
        real *grad_query, real *grad_key, real *grad_value, real *grad_log_decay,                  \
        real *grad_strength, real *grad_write, real *grad_read, real *grad_state, real *workspace, \
        const real *grad_out, const real *grad_new_state, const real *moved,                       \
        const real *checkpoints, const real *query, const real *key, const real *value,            \
        const real *log_decay, const real *strength, const real *write, const real *read,          \
        const real *state, const int64_t *lengths, const int64_t *strides, SIZES,                  \
        int64_t threads) {                                                                         \
        return threefold::delta::backward<real>(                                                   \
            INPUTS,                                                                                \
            {grad_query, grad_key, grad_value, grad_log_decay, grad_strength, grad_write,          \
             grad_read, grad_state},                                                               \
            {{grad_out, strides + 21}, grad_new_state, moved, checkpoints}, workspace);            \
    }                                                                                              \
    int threefold_delta_recurrence_workspace_##suffix(int64_t *numbers, SIZES, int64_t backward,   \
                                                      int64_t threads) {                           \
        return threefold::delta::workspace<real>(                                                  \
            numbers,                                                                               \
            {{}, {}, {}, {}, {}, {}, {}, nullptr, nullptr, batch, length, heads, groups, keys,     \
             values, decays, parts, threads},                                                      \
            backward != 0);                                                                        \
    }                                                                                              \
    int threefold_delta_recurrence_parts_##suffix(int64_t *parts, int64_t memories,                \
                                                  int64_t values, int64_t threads) {               \
        const int64_t unit = threefold::delta::unit_columns;                                       \
        if (memories < 0 || values < 1) return THREEFOLD_BAD_SIZE;                                 \
        *parts = threefold::choose_parts(memories, (values + unit - 1) / unit, threads, 0.1);      \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
