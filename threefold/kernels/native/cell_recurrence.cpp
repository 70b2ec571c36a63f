/* part_t = cell(x_t, U h_{t−1}, part_{t−1})
 *
 * A nonlinear recurrence, and its gradients, over a whole sequence in one call. Threads share the
 * rows of the batch and never wait for each other: each goes through all elements of its rows.
 * cell_forward.h and cell_backward.h process some of the rows; this file chooses the cell.
 */
#include "cell_backward.h"
#include "cell_forward.h"
#include "cell_kinds.h"

namespace threefold {
namespace cell {
namespace {

/* body(Cell) for the cell of that number, in the order of CELL_KINDS in kernels/cell_recurrence.py. */
template <typename real, typename Body>
int with_kind(int64_t kind, const Body &body) {
    switch (kind) {
        case 0: return body(Rnn<real, tanh_>{});
        case 1: return body(Rnn<real, relu_>{});
        case 2: return body(Rnn<real, sigmoid_>{});
        case 3: return body(Rnn<real, identity_>{});
        case 4: return body(Lstm<real, false>{});
        case 5: return body(Lstm<real, true>{});
        case 6: return body(CoupledLstm<real>{});
        case 7: return body(Gru<real, false>{});
        case 8: return body(Gru<real, true>{});
        case 9: return body(GruAfter<real, false>{});
        case 10: return body(GruAfter<real, true>{});
        case 11: return body(Slstm<real>{});
        case 12: return body(RnnMemory<real>{});
        case 13: return body(GatedMemory<real>{});
        case 14: return body(UrLstm<real>{});
        case 15: return body(UrGru<real>{});
        case 16: return body(Euler<real>{});
        case 17: return body(RnnModRelu<real>{});
        default: return THREEFOLD_BAD_SIZE;
    }
}

template <typename real>
int forward(const Inputs<real> &in, int64_t kind, real *workspace, real *out, real *new_state,
            real *kept, const real *inputs) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        using Cell = decltype(cell);
        return Forward<real, Cell>{{in, workspace, false}, out, new_state, kept, inputs}.run();
    });
}

template <typename real>
int backward(const Inputs<real> &in, int64_t kind, real *workspace, real *grad_inputs,
             real *grad_state, const real *grad_out, const real *grad_new_state, const real *out,
             const real *kept) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        using Cell = decltype(cell);
        return Backward<real, Cell>{{in, workspace, true}, grad_inputs,    grad_state,
                                    grad_out,              grad_new_state, out,
                                    kept}
            .run();
    });
}

template <typename real>
int workspace(int64_t *numbers, const Inputs<real> &in, int64_t kind, bool backward) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        *numbers = Plan<real, decltype(cell)>{in, backward}.size();
        return THREEFOLD_OK;
    });
}

}  // namespace
}  // namespace cell
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_cell_recurrence_forward_##suffix(                                                \
        real *out, real *new_state, real *kept, real *workspace, const real *inputs,               \
        const real *recurrent, const real *state, const real *extra, const real *mask,             \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t hidden, int64_t blocks,     \
        int64_t kind, int64_t threads) {                                                           \
        return threefold::cell::forward<real>({recurrent, state, extra, mask, lengths, batch,      \
                                               length, hidden, blocks, threads},                   \
                                              kind, workspace, out, new_state, kept, inputs);      \
    }                                                                                              \
    int threefold_cell_recurrence_backward_##suffix(                                               \
        real *grad_inputs, real *grad_state, real *workspace, const real *grad_out,                \
        const real *grad_new_state, const real *out, const real *kept, const real *recurrent,      \
        const real *state, const real *extra, const real *mask, const int64_t *lengths,            \
        int64_t batch, int64_t length, int64_t hidden, int64_t blocks, int64_t kind,               \
        int64_t threads) {                                                                         \
        return threefold::cell::backward<real>({recurrent, state, extra, mask, lengths, batch,     \
                                                length, hidden, blocks, threads},                  \
                                               kind, workspace, grad_inputs, grad_state, grad_out, \
                                               grad_new_state, out, kept);                         \
    }                                                                                              \
    int threefold_cell_recurrence_workspace_##suffix(                                              \
        int64_t *numbers, int64_t batch, int64_t length, int64_t hidden, int64_t blocks,           \
        int64_t kind, int64_t backward, int64_t threads) {                                         \
        return threefold::cell::workspace<real>(numbers, {nullptr, nullptr, nullptr, nullptr, nullptr,      \
                                                 batch, length, hidden, blocks, threads},          \
                                                kind, backward);                                   \
    }
THREEFOLD_FOR_BOTH(DEFINE)
